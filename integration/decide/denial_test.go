package decide

import (
	"context"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideDenialBeginsNoWindow: a request that a block denies after the window is over
// leaves the next window to the first request that is granted.
func TestDecideDenialBeginsNoWindow(t *testing.T) {
	bed.InSQLAndMemory(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := context.Background()
		p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: 10 * time.Second}
		clock.Set(0)
		bed.Must(t)(l.Allow(ctx, p, "k"))
		if err := l.Block(ctx, p, "k", time.Minute); err != nil {
			t.Fatal(err)
		}
		clock.Set((55 * time.Second).Microseconds())
		if r := bed.Must(t)(l.Allow(ctx, p, "k")); r.Allowed || r.ResetAfter != 5*time.Second {
			t.Errorf("while blocked: %+v", r)
		}
		clock.Set(time.Minute.Microseconds())
		if r := bed.Must(t)(l.Allow(ctx, p, "k")); !r.Allowed || r.ResetAfter != p.Period {
			t.Errorf("after the block: %+v", r)
		}
	})
}

// TestDecideDenialLeavesNoTrace: a denial under a plan with a shorter period changes no
// later decision on the key.
func TestDecideDenialLeavesNoTrace(t *testing.T) {
	bed.InSQLAndMemory(t, func(t *testing.T, l *limiter.Limiter, clock *conformance.Clock) {
		ctx := context.Background()
		for _, p := range bed.Variants(10, 10*time.Second) {
			switch p.Algorithm {
			case limiter.FixedWindow, limiter.SlidingWindowCounter, limiter.SlidingWindowLog:
			default: // of a bucket, past time leaks at the rate of the requested plan
				continue
			}
			short := p
			short.Limit, short.Period = 1, time.Second
			denied := 0
			for step := range int64(60) {
				clock.Set(step * 500_000)
				if step%2 == 0 {
					want := bed.Must(t)(l.AllowN(ctx, p, "alone", 2))
					if got := bed.Must(t)(l.AllowN(ctx, p, "beside", 2)); got != want {
						t.Fatalf("%s: step %d, after %d denials:\ngot:  %+v\nwant: %+v", bed.Variant(p), step, denied, got, want)
					}
				} else if !bed.Must(t)(l.Check(ctx, short, "beside", 1)).Allowed {
					bed.Must(t)(l.Allow(ctx, short, "beside"))
					denied++
				}
			}
			if denied < 10 {
				t.Errorf("%s: only %d denials", bed.Variant(p), denied)
			}
		}
	})
}
