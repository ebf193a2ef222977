package reserve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
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
	l := testworld.NewLimiter(t, testworld.Connect(t, w.URL), nil)
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
