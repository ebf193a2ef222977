package limiter

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// throttle lets one event pass in a while.
type throttle struct {
	since atomic.Int64 // events since the last that passed
	after atomic.Int64 // time of the next that passes, in Unix microseconds
}

// next counts an event, and reports whether it passes: one every so long. since is the
// number of events from the one after the last that passed to this one.
func (t *throttle) next(every time.Duration) (since int64, passes bool) {
	t.since.Add(1)
	now, after := time.Now(), t.after.Load()
	if now.UnixMicro() < after || !t.after.CompareAndSwap(after, now.Add(every).UnixMicro()) {
		return 0, false
	}
	return t.since.Swap(0), true
}

// refusals are the calls that returned ErrMisconfigured. They are logged at most once a
// minute.
type refusals struct {
	throttle
	failOpen bool // Config.MisconfiguredFailsOpen
}

// open reports whether FailOpen may apply to err.
func (r *refusals) open(err error) bool { return r.failOpen || !errors.Is(err, store.ErrMisconfigured) }

// note logs err if it is an ErrMisconfigured and none was logged in the last minute.
func (r *refusals) note(ctx context.Context, logger *slog.Logger, err error) {
	if err == nil || !errors.Is(err, store.ErrMisconfigured) {
		return
	}
	if since, ok := r.next(time.Minute); ok {
		logger.ErrorContext(ctx, "pglimit: no decision until the configuration is corrected", "since_last", since, "error", err)
	}
}

// warnUncached returns a function that logs why prepared statements are not used any
// longer.
func warnUncached(logger *slog.Logger) func(error) {
	return func(cause error) {
		logger.Warn("pglimit: prepared statements are not used from now on, which costs time: they get lost on the way to the server", "error", cause)
	}
}
