package exec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
)

// Breaker is a circuit breaker around a Runner. After several failures in a row it opens:
// statements fail immediately, except one every rest, which probes.
type Breaker struct {
	inner Runner
	after int64 // failures in a row
	rest  int64 // microseconds
	clock func() int64

	answers  atomic.Int64
	failures atomic.Int64
	until    atomic.Int64 // time of the next probe while open; 0 while closed
	last     atomic.Pointer[error]
}

// NewBreaker returns a Breaker over inner that opens for rest after so many failures in a
// row. clock returns microseconds.
func NewBreaker(inner Runner, after int64, rest time.Duration, clock func() int64) *Breaker {
	return &Breaker{inner: inner, after: after, rest: rest.Microseconds(), clock: clock}
}

// Do is Runner.Do, unless the breaker is open.
func (b *Breaker) Do(ctx context.Context, f func(db.DBTX) error) error {
	return b.watch(ctx, f, b.inner.Do)
}

// Within is Runner.Within, unless the breaker is open.
func (b *Breaker) Within(ctx context.Context, f func(db.DBTX) error) error {
	return b.watch(ctx, f, b.inner.Within)
}

// watch runs f by run if the breaker admits it, and counts the outcome.
func (b *Breaker) watch(ctx context.Context, f func(db.DBTX) error, run func(context.Context, func(db.DBTX) error) error) error {
	if err := b.admit(); err != nil {
		return err
	}
	err := run(ctx, f)
	store.AwaitEnd(ctx, err)
	switch {
	case answered(err):
		b.answers.Add(1)
		if b.failures.Load() != 0 || b.until.Load() != 0 {
			b.failures.Store(0)
			b.until.Store(0)
		}
	case errors.As(err, new(*noConnection)), err == ErrNoPipeline: // nothing was sent
	case ctx.Err() == nil || store.EndedByTimeout(ctx):
		if b.failures.Add(1) >= b.after {
			b.last.Store(&err)
			b.until.Store(b.clock() + b.rest)
		}
	}
	return err
}

// Answers returns how many statements the server has answered.
func (b *Breaker) Answers() int64 { return b.answers.Load() }

// admit admits all while closed, and one probe every rest while open: the caller that
// moves until.
func (b *Breaker) admit() error {
	until := b.until.Load()
	if until == 0 {
		return nil
	}
	now := b.clock()
	wait := until - now
	if wait <= 0 || wait > b.rest { // the latter if the clock was set back
		if b.until.CompareAndSwap(until, now+b.rest) {
			return nil
		}
		wait = b.rest
	}
	return b.refusal(wait)
}

// Refuses returns an error while the breaker is open and no probe is due, so that callers
// need not wait for the probe.
func (b *Breaker) Refuses() error {
	if until := b.until.Load(); until != 0 {
		if wait := until - b.clock(); wait > 0 && wait <= b.rest {
			return b.refusal(wait)
		}
	}
	return nil
}

func (b *Breaker) refusal(wait int64) error {
	return fmt.Errorf("the circuit breaker is open (Config.BreakAfter) and tries again in %v; the last failure: %w", time.Duration(wait)*time.Microsecond, *b.last.Load())
}

// answered reports whether the server answered: with a result, an SQLSTATE that does not
// mean it is shutting down or full or refuses the login, or an error of this package or
// ErrLocked. A refused login is no outage, and its error says so while the breaker is open
// too. The breaker only spares the server a connection for each request.
func answered(err error) bool {
	if err == nil || err == store.ErrLocked || err == ErrOtherPeriod || err == ErrRolledBack || err == ErrOneByOne || errors.Is(err, store.ErrOwners) {
		return true
	}
	code := sqlState(err)
	return code != "" && code != tooManyConnections && !strings.HasPrefix(code, serverGoes) && !refusedLogin(err)
}
