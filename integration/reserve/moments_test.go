package reserve

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestSettleAfterResetAndBlock: a row that only a block made, and a denial while it lasted,
// has no policy numbers to use. What is spent is counted under the reservation's own policy.
func TestSettleAfterResetAndBlock(t *testing.T) {
	testworld.InSQLAndMemory(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := t.Context()
		for _, p := range testworld.Holdable() {
			p.Period = 1000 * time.Hour
			for _, denied := range []bool{false, true} {
				key := fmt.Sprint("denied: ", denied)
				clock.Set(0)
				first, second := testworld.Reserve(t, l, p.Request(key, 4), time.Hour), testworld.Reserve(t, l, p.Request(key, 4), time.Hour)
				must.Succeed(t, errors.Join(l.Reset(ctx, p, key), l.Block(ctx, p, key, time.Minute)))
				if denied && testworld.Must(t)(l.Allow(ctx, p, key)).Allowed {
					t.Errorf("%s: a blocked key was allowed", testworld.Variant(p))
				}
				must.Succeed(t, l.Unblock(ctx, p, key))
				for i, id := range []string{first.ID, second.ID} {
					clock.Set(int64(i+1) * 1_000_000)
					r := testworld.Must(t)(l.Settle(ctx, id, 3))
					if want := 3 * float64(i+1); !testworld.Near(r.Level, want) || !testworld.Near(testworld.Level(t, l, p, key), want) {
						t.Errorf("%s, %s: level %v, want %v", testworld.Variant(p), key, r.Level, want)
					}
				}
			}
		}
	})
}

// TestIdempotencyKeyIsFreedWithItsReservation: a reservation that was cancelled or has
// expired frees its key for another; one that was settled does not.
func TestIdempotencyKeyIsFreedWithItsReservation(t *testing.T) {
	testworld.InSQLAndMemory(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := context.Background()
		for _, p := range testworld.Holdable() {
			p.Limit, p.Period = 100, 1000*time.Hour
			clock.Set(0)
			reserve := func(id string) limiter.Reservation {
				t.Helper()
				request := p.Request("k", 60)
				request.IdempotencyKey = id
				return must.OK(l.Reserve(ctx, request, time.Minute))(t)
			}
			cancelled := reserve("a")
			if again := reserve("a"); again.ID != cancelled.ID || !again.Result.Replayed {
				t.Errorf("%s: requested again: %+v", testworld.Variant(p), again)
			}
			must.Succeed(t, l.Cancel(ctx, cancelled.ID))
			expires := reserve("a")
			if expires.ID == cancelled.ID || expires.Result.Replayed || !testworld.Near(expires.Result.Level, 60) {
				t.Errorf("%s: after Cancel: %+v", testworld.Variant(p), expires)
			}
			clock.Set((time.Minute - time.Microsecond).Microseconds())
			if again := reserve("a"); again.ID != expires.ID {
				t.Errorf("%s: a microsecond before its end: %+v", testworld.Variant(p), again)
			}
			clock.Set(time.Minute.Microseconds()) // not yet given back
			third := reserve("a")
			if third.ID == expires.ID || third.Result.Replayed || !third.Result.Allowed || !testworld.Near(third.Result.Level, 60) {
				t.Errorf("%s: after its end: %+v", testworld.Variant(p), third)
			}
			testworld.Must(t)(l.Settle(ctx, third.ID, 10))
			if again := reserve("a"); again.ID != third.ID || !again.Result.Replayed {
				t.Errorf("%s: after Settle: %+v", testworld.Variant(p), again)
			}
		}
	})
}

// TestUsageIsOfOneMoment: Refund and Undo of a key without a row, a Settle that changes
// nothing and a Usage send one statement each.
func TestUsageIsOfOneMoment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	trace := new(testworld.Trace)
	pool := testworld.Connect(t, testworld.NewDatabase(t), trace.On)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: new(conformance.Clock).Now, DisableDenyCache: true})
	for _, p := range testworld.Variants(100, time.Hour) {
		if p.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		once := func(what string, f func()) {
			t.Helper()
			trace.Take()
			f()
			if n := len(trace.Take()); n != 1 {
				t.Errorf("%s: %s sent %d statements", testworld.Variant(p), what, n)
			}
		}
		granted := testworld.Must(t)(l.AllowN(ctx, p, "gone", 5))
		must.Succeed(t, l.Reset(ctx, p, "gone"))
		hold := must.OK(l.Reserve(ctx, p.Request("k", 10), time.Hour))(t)
		testworld.Must(t)(l.Settle(ctx, hold.ID, 10))
		once("Refund", func() {
			if r := testworld.Must(t)(l.Refund(ctx, p, "nothing", 5)); r.Granted != 0 || r.Level != 0 || r.Remaining != 100 {
				t.Errorf("%s: a Refund of nothing: %+v", testworld.Variant(p), r)
			}
		})
		once("Undo", func() {
			if r := testworld.Must(t)(l.Undo(ctx, p, "gone", granted)); r.Granted != 0 || r.Remaining != 100 {
				t.Errorf("%s: an Undo of nothing: %+v", testworld.Variant(p), r)
			}
		})
		once("Settle", func() {
			if r := testworld.Must(t)(l.Settle(ctx, hold.ID, 10)); !r.Replayed || !testworld.Near(r.Level, 10) {
				t.Errorf("%s: settled again: %+v", testworld.Variant(p), r)
			}
		})
		once("Usage", func() {
			if s := must.OK(l.Usage(ctx, p, "k"))(t); !testworld.Near(s.Spent, 10) || s.Reservations != 0 {
				t.Errorf("%s: %+v", testworld.Variant(p), s)
			}
		})
	}
}
