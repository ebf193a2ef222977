package reserve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// ways are all ways to a database, with what they share.
func ways(t *testing.T, config *limiter.Config) map[string]verbs.Limiter {
	pool := testworld.FunctionsPool(t)
	url := pool.Config().ConnString()
	db := testworld.ConnectSQL(t, "pgx", url)
	db.SetMaxOpenConns(16)
	l := testworld.NewLimiter(t, pool, config)
	return map[string]verbs.Limiter{"pgx": l, "database/sql": testworld.NewSQL(t, db, config), "functions": &testworld.Functions{Limiter: l, Q: pool, Now: config.Now}}
}

// TestReserveUpToSum: however many reserve what fits, all of the limit is reserved and no more.
func TestReserveUpToSum(t *testing.T) {
	t.Parallel()
	for way, l := range ways(t, &limiter.Config{}) {
		for i, p := range testworld.Holdable() {
			p.Name, p.Limit, p.Burst, p.Period = fmt.Sprint(way[:3], "-", i), 100, 0, 1000*time.Hour
			var mu sync.Mutex
			var wg sync.WaitGroup
			sum, reservations := 0.0, 0
			for range 64 {
				wg.Go(func() {
					h, err := l.ReserveUpTo(context.Background(), p.Request("k", 7), time.Hour)
					mu.Lock()
					defer mu.Unlock()
					if err != nil || h.Result.Granted > 7 {
						t.Errorf("%+v, %v", h, err)
					}
					if sum += h.Result.Granted; h.ID != "" {
						reservations++
					}
				})
			}
			wg.Wait()
			u, err := l.Usage(context.Background(), p, "k")
			if err != nil || sum != 100 || reservations != 15 || u.Reservations != 15 || !testworld.Near(u.Reserved, 100) {
				t.Errorf("%s, %s: %v units in %d reservations, %+v, %v", way, testworld.Variant(p), sum, reservations, u, err)
			}
		}
	}
}

// TestReserveUpToExpires: what a reservation of a part held comes back at its end, after a
// denial that grants nothing, and no more.
func TestReserveUpToExpires(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for way, l := range ways(t, &limiter.Config{Now: func() time.Time { return at }, DisableDenyCache: true}) {
		for i, p := range testworld.Holdable() {
			at = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			p.Name, p.Limit, p.Burst, p.Period, p.BlockFor = fmt.Sprint(way[:3], "-", i), 25, 0, 1000*time.Hour, time.Hour
			reserve := func(want float64) {
				t.Helper()
				if h, err := l.ReserveUpTo(ctx, p.Request("k", 10), time.Minute); err != nil || h.Result.Granted != want {
					t.Errorf("%s, %s: %+v, %v, want %v", way, testworld.Variant(p), h, err, want)
				}
			}
			testworld.Must(t)(l.AllowN(ctx, p, "k", 16))
			reserve(9)
			at = at.Add(30 * time.Second)
			testworld.Must(t)(l.Refund(ctx, p, "k", 1))
			reserve(1)
			at = at.Add(30 * time.Second)
			reserve(9) // of the first; the second has half a minute left
			if u, err := l.Usage(ctx, p, "k"); err != nil || u.Reservations != 2 || !testworld.Near(u.Reserved, 10) || !testworld.Near(u.Result.Level, 25) {
				t.Errorf("%s, %s: %+v, %v", way, testworld.Variant(p), u, err)
			}
		}
	}
}

// TestReserveUpToALostAnswer: a retry after a lost answer gets the reservation that was made.
func TestReserveUpToALostAnswer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := testworld.NewWire(t, testworld.NewDatabase(t))
	l := testworld.NewLimiter(t, testworld.Connect(t, w.URL), &limiter.Config{Timeout: time.Minute})
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		testworld.Must(t)(l.AllowN(ctx, p, "k", 7))
		request := p.Request("k", 5)
		request.IdempotencyKey = "order 1"
		w.LoseAnswer("SELECT 1")
		if h, err := l.ReserveUpTo(ctx, request, time.Hour); !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("%s: %+v, %v", testworld.Variant(p), h, err)
		}
		for range 2 {
			if h, err := l.ReserveUpTo(ctx, request, time.Hour); err != nil || !h.Result.Replayed || h.Result.Granted != 3 {
				t.Errorf("%s: %+v, %v", testworld.Variant(p), h, err)
			}
		}
		if u, err := l.Usage(ctx, p, "k"); err != nil || u.Reservations != 1 || !testworld.Near(u.Reserved, 3) {
			t.Errorf("%s: %+v, %v", testworld.Variant(p), u, err)
		}
	}
}

// TestEstimateOfEveryWay: each way learns from the key's own estimates, within the bounds, and a
// budget of 25 then holds 25 callers that estimate 5.
func TestEstimateOfEveryWay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	clock := new(conformance.Clock)
	config := &limiter.Config{Now: clock.Now, DisableDenyCache: true, IdempotencyTTL: 24 * time.Hour} // as the functions have it
	for way, l := range ways(t, config) {
		p := limiter.Policy{Name: "budget-" + way[:3], Algorithm: limiter.FixedWindow, Limit: 25, Period: 1000 * time.Hour}
		large := limiter.PerHour(p.Name, 1e6) // of another algorithm
		reserve := func(d verbs.Limiter, p limiter.Policy, key string, cost float64) limiter.Reservation {
			t.Helper()
			h, err := d.Reserve(ctx, limiter.Request{Policy: p, Key: key, Cost: cost, Estimate: true}, time.Hour)
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			return h
		}
		learn := func(p limiter.Policy, key string, n int, cost, spent float64) {
			t.Helper()
			for range n {
				clock.Set(clock.Now().Sub(conformance.Epoch).Microseconds() + 1) // the last ones are known
				h := reserve(l, p, key, cost)
				testworld.Must(t)(l.Settle(ctx, h.ID, spent))
				if spent > 0 {
					testworld.Must(t)(l.Refund(ctx, p, key, spent))
				}
			}
		}
		learn(large, "k", 10, 1, 2)
		learn(p, "other", 10, 1, 2)
		learn(p, "k", 10, 5, 1)
		ids := map[string]bool{}
		for range 25 {
			if h := reserve(l, p, "k", 5); h.Result.Granted != 1 {
				t.Fatalf("%s: reservation %d: %+v", way, len(ids), h)
			} else {
				ids[h.ID] = true
			}
		}
		if h := reserve(l, p, "k", 5); h.Result.Allowed {
			t.Errorf("%s: %+v", way, h)
		}
		part, err := l.ReserveUpTo(ctx, limiter.Request{Policy: p, Key: "other", Cost: 20, Estimate: true}, time.Hour)
		if err != nil || part.Result.Granted != 25 { // of at most the burst
			t.Errorf("%s: %+v, %v", way, part, err)
		}
		learn(large, "least", 5, 100, 0)
		learn(large, "most", 5, 100, 5000)
		learn(large, "changed", 25, 100, 10)
		learn(large, "changed", 20, 100, 150)
		learn(large, "few", 4, 100, 10)
		for key, want := range map[string]float64{"least": 10, "most": 200, "changed": 150, "few": 100, "new": 100} {
			if h := reserve(l, large, key, 100); h.Result.Granted != want {
				t.Errorf("%s, %s: %+v, want %v", way, key, h, want)
			}
		}
		now := clock.Now().Sub(conformance.Epoch).Microseconds()
		clock.Set(now + 25*time.Hour.Microseconds()) // they are forgotten
		if h := reserve(l, large, "least", 100); h.Result.Granted != 100 {
			t.Errorf("%s: forgotten: %+v", way, h)
		}
		clock.Set(now)
	}
}
