package store

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// ErrTimeout is the cause of a context that was ended by Bound's timeout, not by the
// caller.
var ErrTimeout = fmt.Errorf("pglimit: Config.Timeout: %w", context.DeadlineExceeded)

// Bound returns s with each Do bounded by timeout, if that is positive. If its context has
// ended, it sends nothing. When a Do ends early, its error says whether the caller or the
// timeout ended it.
func Bound(s Store, timeout time.Duration) Store { return bound{s, timeout} }

// timeoutKey is the type of TimeoutKey.
type timeoutKey struct{}

// TimeoutKey is the key of a context's value that is not nil once Config.Timeout ended it,
// if the context has no cause.
var TimeoutKey timeoutKey

// EndedByTimeout reports whether Config.Timeout ended ctx.
func EndedByTimeout(ctx context.Context) bool {
	return context.Cause(ctx) == ErrTimeout || ctx.Value(TimeoutKey) != nil
}

// TimedOut returns err with the timeout that ended the wait.
func TimedOut(err error, timeout time.Duration) error {
	return fmt.Errorf("%w (Config.Timeout is %v)", err, timeout)
}

// Starved reports whether this process is so busy that a goroutine which could run waits for
// longer than 50 ms. Then answers wait as long to be read, each of a transaction, and the
// server is not to blame for what came late. It lets those that could run have their turn.
func Starved() bool {
	start := time.Now()
	runtime.Gosched()
	return time.Since(start) > 50*time.Millisecond
}

// EndedContext returns ctx's error as the limiter returns it.
func EndedContext(ctx context.Context) error { return fmt.Errorf("pglimit: %w", ctx.Err()) }

// AwaitEnd waits for the end of a context whose deadline has passed. A connection's own
// timer may fire first, and its error is not the database's.
func AwaitEnd(ctx context.Context, err error) {
	if deadline, ok := ctx.Deadline(); ok && err != nil && !time.Now().Before(deadline) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second): // a custom context that ignores its deadline
		}
	}
}

type bound struct {
	inner   Store
	timeout time.Duration
}

// Do is Store's.
func (b bound) Do(ctx context.Context, op *Op) error {
	return Since(ctx, time.Now(), b.timeout, func(ctx context.Context) error { return b.inner.Do(ctx, op) })
}

// Since runs f, bounded as Bound does by a timeout that began at a time.
func Since(ctx context.Context, began time.Time, timeout time.Duration, f func(context.Context) error) error {
	if ctx.Err() != nil {
		return EndedContext(ctx)
	}
	inner := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithDeadlineCause(ctx, began.Add(timeout), ErrTimeout)
		defer cancel()
	}
	err := f(inner)
	AwaitEnd(inner, err)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = EndedContext(ctx)
	case inner.Err() != nil:
		err = TimedOut(err, timeout)
	}
	return err
}
