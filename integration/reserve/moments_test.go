package reserve

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestSettleAfterResetAndBlock: a row that only a block made, and a denial while it lasted,
// has no policy numbers to use. What is spent is counted under the reservation's own policy.
func TestSettleAfterResetAndBlock(t *testing.T) {
	bed.InSQLAndMemory(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := t.Context()
		for _, p := range bed.Holdable() {
			p.Period = 1000 * time.Hour
			for _, denied := range []bool{false, true} {
				key := fmt.Sprint("denied: ", denied)
				clock.Set(0)
				first, second := bed.Reserve(t, l, p.Request(key, 4), time.Hour), bed.Reserve(t, l, p.Request(key, 4), time.Hour)
				must.Succeed(t, errors.Join(l.Reset(ctx, p, key), l.Block(ctx, p, key, time.Minute)))
				if denied && bed.Must(t)(l.Allow(ctx, p, key)).Allowed {
					t.Errorf("%s: a blocked key was allowed", bed.Variant(p))
				}
				must.Succeed(t, l.Unblock(ctx, p, key))
				for i, id := range []string{first.ID, second.ID} {
					clock.Set(int64(i+1) * 1_000_000)
					r := bed.Must(t)(l.Settle(ctx, id, 3))
					if want := 3 * float64(i+1); !bed.Near(r.Level, want) || !bed.Near(bed.Level(t, l, p, key), want) {
						t.Errorf("%s, %s: level %v, want %v", bed.Variant(p), key, r.Level, want)
					}
				}
			}
		}
	})
}

// TestUsageIsOfOneMoment: Refund and Undo of a key without a row, a Settle that changes
// nothing and a Usage send one statement each.
func TestUsageIsOfOneMoment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	trace := new(bed.Trace)
	pool := bed.Connect(t, bed.NewDatabase(t), trace.On)
	l := bed.NewLimiter(t, pool, &limiter.Config{Now: new(conformance.Clock).Now, DisableDenyCache: true})
	for _, p := range bed.Variants(100, time.Hour) {
		if p.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		once := func(what string, f func()) {
			t.Helper()
			trace.Take()
			f()
			if n := len(trace.Take()); n != 1 {
				t.Errorf("%s: %s sent %d statements", bed.Variant(p), what, n)
			}
		}
		granted := bed.Must(t)(l.AllowN(ctx, p, "gone", 5))
		if err := l.Reset(ctx, p, "gone"); err != nil {
			t.Fatal(err)
		}
		hold := must.OK(l.Reserve(ctx, p.Request("k", 10), time.Hour))(t)
		bed.Must(t)(l.Settle(ctx, hold.ID, 10))
		once("Refund", func() {
			if r := bed.Must(t)(l.Refund(ctx, p, "nothing", 5)); r.Granted != 0 || r.Level != 0 || r.Remaining != 100 {
				t.Errorf("%s: a Refund of nothing: %+v", bed.Variant(p), r)
			}
		})
		once("Undo", func() {
			if r := bed.Must(t)(l.Undo(ctx, p, "gone", granted)); r.Granted != 0 || r.Remaining != 100 {
				t.Errorf("%s: an Undo of nothing: %+v", bed.Variant(p), r)
			}
		})
		once("Settle", func() {
			if r := bed.Must(t)(l.Settle(ctx, hold.ID, 10)); !r.Replayed || !bed.Near(r.Level, 10) {
				t.Errorf("%s: settled again: %+v", bed.Variant(p), r)
			}
		})
		once("Usage", func() {
			if s := must.OK(l.Usage(ctx, p, "k"))(t); !bed.Near(s.Spent, 10) || s.Reservations != 0 {
				t.Errorf("%s: %+v", bed.Variant(p), s)
			}
		})
	}
}
