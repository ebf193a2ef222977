package limiter

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/throttle"
)

// refusals are the calls that returned ErrMisconfigured. They are logged at most once a
// minute.
type refusals struct {
	throttle.Throttle
	failOpen bool // Config.MisconfiguredFailsOpen
}

// open reports whether FailOpen may apply to err.
func (r *refusals) open(err error) bool { return r.failOpen || !errors.Is(err, store.ErrMisconfigured) }

// note logs err if it is an ErrMisconfigured and none was logged in the last minute.
func (r *refusals) note(ctx context.Context, logger *slog.Logger, err error) {
	if err == nil || !errors.Is(err, store.ErrMisconfigured) {
		return
	}
	if since, ok := r.Next(time.Minute); ok {
		logger.ErrorContext(ctx, "pglimit: no decision until the configuration is corrected", "since_last", since, "error", err)
	}
}
