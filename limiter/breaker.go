package limiter

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
)

// Of the circuit breaker where Config has zeros.
const (
	// DefaultBreakAfter is Config.BreakAfter where it is 0.
	DefaultBreakAfter = 10
	// DefaultBreakFor is Config.BreakFor where it is 0.
	DefaultBreakFor = time.Second
)

// errTimeout is the cause of a context that Config.Timeout ended, and not its
// caller.
var errTimeout = fmt.Errorf("pglimit: Config.Timeout: %w", context.DeadlineExceeded)

// breaker runs statements until the server has not answered several times in a
// row: then it fails them at once, but for one every rest, which probes.
type breaker struct {
	inner runner
	after int64 // failures in a row
	rest  int64 // microseconds
	clock func() int64

	failures atomic.Int64
	until    atomic.Int64 // while open: nobody asks before, and then one; closed: 0
	last     atomic.Pointer[error]
}

func newBreaker(c *Config, inner runner) (*breaker, error) {
	if c.BreakFor < 0 {
		return nil, invalid("Config.BreakFor", c.BreakFor.String(), "must not be negative; a negative BreakAfter is off")
	}
	b := &breaker{inner: inner, after: int64(c.BreakAfter), rest: c.BreakFor.Microseconds(), clock: c.clock()}
	if c.BreakAfter < 0 {
		b.after = math.MaxInt64
	}
	return b, nil
}

func (b *breaker) do(ctx context.Context, f func(db.DBTX) error) error {
	return b.watch(ctx, f, b.inner.do)
}

func (b *breaker) within(ctx context.Context, f func(db.DBTX) error) error {
	return b.watch(ctx, f, b.inner.within)
}

// watch runs f by run if it may, and notes what came of it.
func (b *breaker) watch(ctx context.Context, f func(db.DBTX) error, run func(context.Context, func(db.DBTX) error) error) error {
	if err := b.admit(); err != nil {
		return err
	}
	err := run(ctx, f)
	awaitEnd(ctx, err)
	switch {
	case answered(err):
		if b.failures.Load() != 0 || b.until.Load() != 0 {
			b.failures.Store(0)
			b.until.Store(0)
		}
	case ctx.Err() == nil || context.Cause(ctx) == errTimeout:
		if b.failures.Add(1) >= b.after {
			b.last.Store(&err)
			b.until.Store(b.clock() + b.rest)
		}
	}
	return err
}

// admit lets all pass while closed. While open one passes every rest: who moves
// until on.
func (b *breaker) admit() error {
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

// refuses tells, with an error, that the breaker is open: who would only wait
// for the one that probes need not.
func (b *breaker) refuses() error {
	if until := b.until.Load(); until != 0 {
		return b.refusal(max(0, until-b.clock()))
	}
	return nil
}

func (b *breaker) refusal(wait int64) error {
	return fmt.Errorf("not asked: the circuit breaker is open (Config.BreakAfter) and tries again in %v; the last failure: %w", duration(wait), *b.last.Load())
}

// answered reports whether the server did, be it with an error, that a row is
// held, that its clock is in another period, or with what had to be rolled back.
func answered(err error) bool {
	if err == nil || err == errHeld || err == errOtherPeriod || err == errRolledBack {
		return true
	}
	code := sqlState(err)
	return code != "" && code != tooManyConnections && !strings.HasPrefix(code, serverGoes)
}
