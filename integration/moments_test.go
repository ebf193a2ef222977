package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// ok is must for any type.
func ok[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// both runs f on a limiter over PostgreSQL and on one in memory, by a clock that it
// sets.
func both(t *testing.T, f func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock)) {
	t.Parallel()
	t.Run("SQL", func(t *testing.T) {
		t.Parallel()
		clock := new(conformance.Clock)
		f(t, newLimiter(t, newPool(t), &limiter.Config{Now: clock.Now, DenyCacheTTL: -1}), clock)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		clock := new(conformance.Clock)
		f(t, limiter.NewMemory(&limiter.Config{Now: clock.Now}), clock)
	})
}

// TestSettleAfterAReset: what was spent counts in the window that runs now, which has
// another end; and none of it once the hold's own would be over.
func TestSettleAfterAReset(t *testing.T) {
	both(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := context.Background()
		for _, p := range variants(100, time.Hour) {
			if p.Algorithm == limiter.LeakyBucketQueue {
				continue
			}
			clock.Set(0)
			first := ok(l.Reserve(ctx, p.Ask("k", 40), 3*time.Hour))(t)
			late := ok(l.Reserve(ctx, p.Ask("k", 30), 3*time.Hour))(t)
			if err := l.Reset(ctx, p, "k"); err != nil {
				t.Fatal(err)
			}
			clock.Set(1)
			must(t)(l.Allow(ctx, p, "k"))
			if r := must(t)(l.Settle(ctx, first.ID, 40)); !near(r.Level, 41) {
				t.Errorf("%s: after Reset, Allow and Settle of 40: level %v", variant(p), r.Level)
			}
			if r := must(t)(l.Check(ctx, p, "k", 0)); !near(r.Level, 41) {
				t.Errorf("%s: then %v", variant(p), r.Level)
			}
			if p.Algorithm != limiter.FixedWindow {
				continue
			}
			clock.Set(time.Hour.Microseconds())
			if r := must(t)(l.Settle(ctx, late.ID, 30)); r.Level > 41 {
				t.Errorf("%s: the hold's window is over, and %v count", variant(p), r.Level)
			}
		}
	})
}

// TestIdempotencyKeyIsFreedWithItsHold: a hold that was cancelled or has expired came
// to nothing, and its key makes another; one that was settled did not.
func TestIdempotencyKeyIsFreedWithItsHold(t *testing.T) {
	both(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := context.Background()
		for _, p := range variants(100, 1000*time.Hour) {
			if p.Algorithm == limiter.LeakyBucketQueue {
				continue
			}
			clock.Set(0)
			reserve := func(id string) limiter.Hold {
				t.Helper()
				ask := p.Ask("k", 60)
				ask.IdempotencyKey = id
				return ok(l.Reserve(ctx, ask, time.Minute))(t)
			}
			cancelled := reserve("a")
			if again := reserve("a"); again.ID != cancelled.ID || !again.Result.Replayed {
				t.Errorf("%s: asked again: %+v", variant(p), again)
			}
			if err := l.Cancel(ctx, cancelled.ID); err != nil {
				t.Fatal(err)
			}
			expires := reserve("a")
			if expires.ID == cancelled.ID || expires.Result.Replayed || !near(expires.Result.Level, 60) {
				t.Errorf("%s: after Cancel: %+v", variant(p), expires)
			}
			clock.Set((time.Minute - time.Microsecond).Microseconds())
			if again := reserve("a"); again.ID != expires.ID {
				t.Errorf("%s: a microsecond before its end: %+v", variant(p), again)
			}
			clock.Set(time.Minute.Microseconds()) // nobody has given it back yet
			third := reserve("a")
			if third.ID == expires.ID || third.Result.Replayed || !third.Result.Allowed || !near(third.Result.Level, 60) {
				t.Errorf("%s: after its end: %+v", variant(p), third)
			}
			must(t)(l.Settle(ctx, third.ID, 10))
			if again := reserve("a"); again.ID != third.ID || !again.Result.Replayed {
				t.Errorf("%s: after Settle: %+v", variant(p), again)
			}
		}
	})
}

// TestOneStatementTellsOfOneMoment: Refund and Undo of a key without a row, a Settle that
// changes nothing and a Statement send one statement each.
func TestOneStatementTellsOfOneMoment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	trace := new(sent)
	pool := connect(t, newDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = trace })
	l := newLimiter(t, pool, &limiter.Config{Now: new(conformance.Clock).Now, DenyCacheTTL: -1})
	for _, p := range variants(100, time.Hour) {
		if p.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		once := func(what string, f func()) {
			t.Helper()
			trace.args = nil
			f()
			if n := len(trace.args); n != 1 {
				t.Errorf("%s: %s sent %d statements", variant(p), what, n)
			}
		}
		granted := must(t)(l.AllowN(ctx, p, "gone", 5))
		if err := l.Reset(ctx, p, "gone"); err != nil {
			t.Fatal(err)
		}
		hold := ok(l.Reserve(ctx, p.Ask("k", 10), time.Hour))(t)
		must(t)(l.Settle(ctx, hold.ID, 10))
		once("Refund", func() {
			if r := must(t)(l.Refund(ctx, p, "nothing", 5)); r.Granted != 0 || r.Level != 0 || r.Remaining != 100 {
				t.Errorf("%s: a Refund of nothing: %+v", variant(p), r)
			}
		})
		once("Undo", func() {
			if r := must(t)(l.Undo(ctx, p, "gone", granted)); r.Granted != 0 || r.Remaining != 100 {
				t.Errorf("%s: an Undo of nothing: %+v", variant(p), r)
			}
		})
		once("Settle", func() {
			if r := must(t)(l.Settle(ctx, hold.ID, 10)); !r.Replayed || !near(r.Level, 10) {
				t.Errorf("%s: settled again: %+v", variant(p), r)
			}
		})
		once("Statement", func() {
			if s := ok(l.Statement(ctx, p, "k"))(t); !near(s.Spent, 10) || s.Holds != 0 {
				t.Errorf("%s: %+v", variant(p), s)
			}
		})
	}
}
