package store

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// ErrTimeout is the cause of a context that was ended by Bound's timeout, not by the
// caller.
var ErrTimeout = fmt.Errorf("pglimit: Config.Timeout: %w", context.DeadlineExceeded)

// Bound returns s with each method bounded by timeout, if that is positive. A method
// whose context has ended sends nothing. When a method ends early, its error says whether
// the caller or the timeout ended it.
func Bound(s Store, timeout time.Duration) Store { return bound{s, timeout} }

// timeoutKey is the type of TimeoutKey.
type timeoutKey struct{}

// TimeoutKey is the key of a context's value that is not nil once Config.Timeout ended it,
// if the context has no cause.
var TimeoutKey timeoutKey

// flightKey is the type of FlightKey.
type flightKey struct{}

// FlightKey is the key of a context's value that is a Flight.
var FlightKey flightKey

// Flight is a statement, or a transaction, that no caller can cancel.
type Flight interface {
	// Sends marks it as sent and reports true, unless its context has ended before that.
	Sends() bool
	// Sent reports whether it was sent. That does not change once its context has ended.
	Sent() bool
}

// Sends is called with a connection for a statement, before anything is sent. If it returns
// false, nothing may be sent: the callers were told so.
func Sends(ctx context.Context) bool {
	f, ok := ctx.Value(FlightKey).(Flight)
	return !ok || f.Sends()
}

// NotSent reports whether ctx has ended before anything was sent. A context without a Flight
// does not know.
func NotSent(ctx context.Context) bool {
	f, ok := ctx.Value(FlightKey).(Flight)
	return ctx.Err() != nil && (!ok || !f.Sent())
}

// EndedByTimeout reports whether Config.Timeout ended ctx.
func EndedByTimeout(ctx context.Context) bool {
	return context.Cause(ctx) == ErrTimeout || ctx.Value(TimeoutKey) != nil
}

// TimedOut returns err with the timeout that ended the wait.
func TimedOut(err error, timeout time.Duration) error {
	return fmt.Errorf("%w (Config.Timeout is %v)", err, timeout)
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

// Within runs f, bounded as Bound does.
func Within[T any](ctx context.Context, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	return Since(ctx, time.Now(), timeout, f)
}

// Since is Within with a timeout that began at a time.
func Since[T any](ctx context.Context, began time.Time, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	if ctx.Err() != nil {
		var none T
		return none, EndedContext(ctx)
	}
	inner := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithDeadlineCause(ctx, began.Add(timeout), ErrTimeout)
		defer cancel()
	}
	v, err := f(inner)
	AwaitEnd(inner, err)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = EndedContext(ctx)
	case inner.Err() != nil:
		err = TimedOut(err, timeout)
	}
	return v, err
}

// do is Within for a method that returns only an error.
func do(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	_, err := Within(ctx, timeout, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

func (b bound) Take(ctx context.Context, q *Query) (Outcome, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Outcome, error) { return b.inner.Take(ctx, q) })
}

func (b bound) TakeAll(ctx context.Context, joints []*Joint, possible bool) (bool, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (bool, error) { return b.inner.TakeAll(ctx, joints, possible) })
}

func (b bound) Charge(ctx context.Context, q *Query) (Outcome, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Outcome, error) { return b.inner.Charge(ctx, q) })
}

func (b bound) Refund(ctx context.Context, q *Query) (Outcome, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Outcome, error) { return b.inner.Refund(ctx, q) })
}

func (b bound) Undo(ctx context.Context, q *Query, g algorithm.Grant) (Outcome, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Outcome, error) { return b.inner.Undo(ctx, q, g) })
}

func (b bound) Get(ctx context.Context, q *Query) (Outcome, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Outcome, error) { return b.inner.Get(ctx, q) })
}

func (b bound) Usage(ctx context.Context, q *Query) (Usage, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Usage, error) { return b.inner.Usage(ctx, q) })
}

func (b bound) Block(ctx context.Context, q *Query, forUs int64) error {
	return do(ctx, b.timeout, func(ctx context.Context) error { return b.inner.Block(ctx, q, forUs) })
}

func (b bound) Unblock(ctx context.Context, q *Query, until int64) error {
	return do(ctx, b.timeout, func(ctx context.Context) error { return b.inner.Unblock(ctx, q, until) })
}

func (b bound) Reset(ctx context.Context, q *Query) error {
	return do(ctx, b.timeout, func(ctx context.Context) error { return b.inner.Reset(ctx, q) })
}

func (b bound) Leave(ctx context.Context, q *Query, ticket int64) (bool, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (bool, error) { return b.inner.Leave(ctx, q, ticket) })
}

func (b bound) Reserve(ctx context.Context, q *Query, a *Admission) (Outcome, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Outcome, error) { return b.inner.Reserve(ctx, q, a) })
}

func (b bound) Settle(ctx context.Context, e *Ending) (Ended, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) (Ended, error) { return b.inner.Settle(ctx, e) })
}

func (b bound) Due(ctx context.Context, q *Query) ([]string, error) {
	return Within(ctx, b.timeout, func(ctx context.Context) ([]string, error) { return b.inner.Due(ctx, q) })
}

func (b bound) NextDue(ctx context.Context) (int64, error) {
	return Within(ctx, b.timeout, b.inner.NextDue)
}
