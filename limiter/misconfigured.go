package limiter

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

// refusals are the calls that returned ErrMisconfigured. They are logged at most once a
// minute.
type refusals struct {
	failOpen bool         // Config.MisconfiguredFailsOpen
	since    atomic.Int64 // calls since the last log
	next     atomic.Int64 // time of the next log, in Unix microseconds
}

// open reports whether FailOpen may apply to err.
func (r *refusals) open(err error) bool { return r.failOpen || !errors.Is(err, ErrMisconfigured) }

// note logs err if it is an ErrMisconfigured and none was logged in the last minute.
func (r *refusals) note(ctx context.Context, logger *slog.Logger, err error) {
	if err == nil || !errors.Is(err, ErrMisconfigured) {
		return
	}
	r.since.Add(1)
	now, next := time.Now(), r.next.Load()
	if now.UnixMicro() < next || !r.next.CompareAndSwap(next, now.Add(time.Minute).UnixMicro()) {
		return
	}
	logger.ErrorContext(ctx, "pglimit: no decision until the configuration is corrected", "since_last", r.since.Swap(0), "error", err)
}

// warnUncached returns a function that logs why prepared statements are not used any
// longer.
func warnUncached(logger *slog.Logger) func(error) {
	return func(cause error) {
		logger.Warn("pglimit: prepared statements are not used from now on, which costs time: they get lost on the way to the server", "error", cause)
	}
}
