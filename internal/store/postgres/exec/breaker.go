package exec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Breaker is a circuit breaker of a Pool. After several failures in a row it opens:
// statements fail immediately, except one every rest, which probes.
type Breaker struct {
	after int64 // failures in a row
	rest  int64 // microseconds
	clock func() int64

	answers  atomic.Int64
	failures atomic.Int64
	until    atomic.Int64 // time of the next probe while open; 0 while closed
	last     atomic.Pointer[error]
}

// NewBreaker returns a Breaker that opens for rest after so many failures in a row. clock
// returns microseconds.
func NewBreaker(after int64, rest time.Duration, clock func() int64) *Breaker {
	return &Breaker{after: after, rest: rest.Microseconds(), clock: clock}
}

// note counts the outcome of a statement or transaction.
func (b *Breaker) note(ctx context.Context, err error) {
	store.AwaitEnd(ctx, err)
	switch {
	case answered(err):
		b.answers.Add(1)
		if b.failures.Load() != 0 || b.until.Load() != 0 {
			b.failures.Store(0)
			b.until.Store(0)
		}
	case errors.As(err, new(*noConnection)), err == ErrNoPipeline, err == store.ErrElsewhere: // nothing was sent, or it goes on
	case ctx.Err() == nil || store.EndedByTimeout(ctx):
		if b.failures.Add(1) >= b.after {
			b.last.Store(&err)
			b.until.Store(b.clock() + b.rest)
		}
	}
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
