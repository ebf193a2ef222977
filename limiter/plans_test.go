package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestPlansLevelIsCarriedOver: a smaller plan finds all that a larger one has spent and
// reports it.
func TestPlansLevelIsCarriedOver(t *testing.T) {
	for _, base := range search.Variants(1000, time.Hour) {
		t.Run(search.Name(base), func(t *testing.T) {
			clock := new(conformance.Clock)
			clock.Set(1_000_000)
			l := limiter.NewMemory(&limiter.Config{Now: clock.Now})
			large, small := base, base
			small.Limit = 10
			passed := 0.0
			for i := range 300 { // at one moment
				p := large
				if i%2 == 1 {
					p = small
				}
				r, err := l.AllowUpTo(t.Context(), p, "k", p.Limit)
				if err != nil {
					t.Fatal(err)
				}
				passed += r.Granted
				if i == 0 {
					continue
				}
				if r.Level != 1000 || r.Remaining != 0 || !r.Full || r.RetryAfter <= 0 || r.RetryAfter == limiter.Never {
					t.Fatalf("under %v an hour: %+v", p.Limit, r)
				}
			}
			if passed != 1000 {
				t.Errorf("%v units passed of 1000", passed)
			}
			// The request fits after RetryAfter and not earlier.
			r, err := l.Allow(t.Context(), small, "k")
			if err != nil {
				t.Fatal(err)
			}
			at := 1_000_000 + r.RetryAfter.Microseconds()
			for _, c := range []struct {
				at   int64
				want bool
			}{{at - 1, false}, {at, true}} {
				clock.Set(c.at)
				if r, err := l.Check(t.Context(), small, "k", 1); err != nil || r.Allowed != c.want {
					t.Errorf("at %d of %d: %+v, %v", c.at, at, r, err)
				}
			}
		})
	}
}

// TestPlansOnOneReservation: a small plan's denial does not change a reservation.
func TestPlansOnOneReservation(t *testing.T) {
	for _, base := range search.Variants(100, time.Hour) {
		if base.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		l := limiter.NewMemory(&limiter.Config{Now: new(conformance.Clock).Now})
		small := base
		small.Limit = 10
		reservation, err := l.Reserve(t.Context(), base.Request("k", 80), time.Minute)
		if err != nil || !reservation.Result.Allowed {
			t.Fatal(reservation, err)
		}
		if r, err := l.Allow(t.Context(), small, "k"); err != nil || r.Allowed || r.Level != 80 {
			t.Errorf("%s: %+v, %v", search.Name(base), r, err)
		}
		if s, err := l.Usage(t.Context(), base, "k"); err != nil || s.Reserved != 80 || s.Spent != 0 {
			t.Errorf("%s: %+v, %v", search.Name(base), s, err)
		}
		if r, err := l.Settle(t.Context(), reservation.ID, 400); err != nil || r.Level != 400 { // an overdraft of 300
			t.Errorf("%s: %+v, %v", search.Name(base), r, err)
		}
		if r, err := l.Allow(t.Context(), small, "k"); err != nil || r.Allowed || r.Level != 400 {
			t.Errorf("%s: the overdraft is %+v, %v", search.Name(base), r, err)
		}
		if r, err := l.Check(t.Context(), base, "k", 0); err != nil || r.Level != 400 {
			t.Errorf("%s: the overdraft is %+v, %v", search.Name(base), r, err)
		}
	}
}

func ExamplePolicy_plans() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	paid := limiter.Policy{Name: "api", Algorithm: limiter.FixedWindow, Limit: 1000, Period: time.Hour}
	free := paid
	free.Limit = 100
	_, _ = l.AllowN(ctx, paid, "alice", 300)
	r, _ := l.Allow(ctx, free, "alice") // alice changed to the free plan
	fmt.Println(r.Allowed, r.Level, r.Remaining, r.RetryAfter)
	// Output: false 300 0 1h0m0s
}
