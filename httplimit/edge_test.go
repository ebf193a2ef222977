package httplimit

import (
	"context"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// refunded is the status that the tests of this file refund.
const refunded = http.StatusNotModified

// TestRefundIfAtTheEdge checks that a request granted right before the edge of a window
// gives nothing back to the next window: there at most the limit passes.
func TestRefundIfAtTheEdge(t *testing.T) {
	const limit = 100
	for _, p := range []limiter.Policy{
		{Algorithm: limiter.FixedWindow, Period: 10 * time.Second},
		{Algorithm: limiter.FixedWindow, Period: 10 * time.Second, Aligned: true},
		{Algorithm: limiter.FixedWindow, Calendar: limiter.Hour, TimeZone: "UTC"},
		{Algorithm: limiter.SlidingWindowCounter, Period: 10 * time.Second},
		{Algorithm: limiter.SlidingWindowLog, Period: 10 * time.Second},
	} {
		p.Name, p.Limit = "p", limit
		now := at.Truncate(time.Hour)
		period := p.Period
		if p.Calendar != "" {
			period = time.Hour
		}
		l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
		passed := 0
		fill := New(l, fixed(p.Request("k", 1)))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }))
		early := New(l, fixed(p.Request("k", 1)), WithRefundIf(func(status int) bool { return status == refunded }))(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				now = now.Add(2 * period) // beyond the weight of the request's window, too
				for range limit {
					get(fill, request())
				}
				w.WriteHeader(refunded)
			}))
		get(fill, request()) // begins the first window
		now = now.Add(period - time.Microsecond)
		passed = 0
		get(early, request())
		for range 10 {
			get(fill, request())
		}
		if passed != limit {
			t.Errorf("%s, aligned %v, calendar %q: %d passed in one window, want %d", p.Algorithm, p.Aligned, p.Calendar, passed, limit)
		}
	}
}

// TestRefundIfLetsNothingPassTwice runs random requests, inside one another and across
// the edges of windows. Every request that passes and is not refunded would also have
// passed if the refunded ones had never come.
func TestRefundIfLetsNothingPassTwice(t *testing.T) {
	passes, refunds := 0, 0
	for _, p := range []limiter.Policy{
		{Algorithm: limiter.LeakyBucket}, {Algorithm: limiter.TokenBucket}, {Algorithm: limiter.GCRA},
		{Algorithm: limiter.FixedWindow, Aligned: true}, {Algorithm: limiter.SlidingWindowCounter}, {Algorithm: limiter.SlidingWindowLog},
	} {
		p.Name, p.Limit, p.Period = "p", 10, 10*time.Second
		for seed := range uint64(100) {
			random := rand.New(rand.NewPCG(seed, 2))
			now := at.Truncate(time.Hour)
			pass := func() { now = now.Add(time.Duration(random.Int64N(2e6)) * time.Microsecond) }
			config := &limiter.Config{Now: func() time.Time { return now }}
			l, without := limiter.NewMemory(config), limiter.NewMemory(config)
			var visit func(depth int)
			visit = func(depth int) {
				units, status := float64(1+random.IntN(5)), 200
				if random.IntN(2) == 0 {
					status = refunded
				}
				requests := []limiter.Request{p.Request("k", units)}
				if random.IntN(2) == 0 { // decided by AllowAll
					requests = append(requests, p.Request("other", 0.001))
				}
				get(New(l, fixed(requests...), WithRefundIf(func(status int) bool { return status == refunded }))(
					http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						if status == refunded {
							refunds++
						} else {
							passes++
							if r, err := without.AllowN(context.Background(), p, "k", units); err != nil || !r.Allowed {
								t.Fatalf("%s, seed %d: %v units passed, which would not have without the refunded ones: %+v, %v", p.Algorithm, seed, units, r, err)
							}
						}
						for range random.IntN(3) {
							if pass(); depth < 4 {
								visit(depth + 1)
							}
						}
						w.WriteHeader(status)
					})), request())
			}
			for range 20 {
				pass()
				visit(0)
			}
		}
	}
	if passes < 3000 || refunds < 3000 {
		t.Errorf("%d passed, %d were refunded: too few to test anything", passes, refunds)
	}
}
