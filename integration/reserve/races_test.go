package reserve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveFreedByTheResetThatWaited: a Reserve had locked the key's row when the Reset
// arrived. The Reset forgets it with the row, and its end gives nothing back at the
// expense of others.
func TestReserveFreedByTheResetThatWaited(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		for _, inTx := range []bool{false, true} {
			key := fmt.Sprint("in a transaction: ", inTx)
			testworld.Must(t)(l.Allow(ctx, p, key))
			reserving := testworld.Begin(t, pool, pgx.TxOptions{})
			h := testworld.Reserve(t, l.InTx(reserving), p.Request(key, 5), time.Hour)
			done := make(chan error, 1)
			go func() {
				if !inTx {
					done <- l.Reset(ctx, p, key)
					return
				}
				done <- pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return l.InTx(tx).Reset(ctx, p, key) })
			}()
			testworld.AwaitBlocked(t, pool)
			must.Succeed(t, errors.Join(reserving.Commit(ctx), <-done))
			testworld.Must(t)(l.AllowN(ctx, p, key, 10))
			if err := l.Cancel(ctx, h.ID); err != nil || !testworld.Near(testworld.Level(t, l, p, key), 10) {
				t.Errorf("%s, %s: level %v after the cancel, %v: units can pass twice", testworld.Variant(p), key, testworld.Level(t, l, p, key), err)
			}
		}
	}
}

// TestReserveEndsOnce: if many callers end a reservation at once, in all possible ways,
// one succeeds, and the key changes once.
func TestReserveEndsOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 32 })
	var at atomic.Int64
	at.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	now := func() time.Time { return time.UnixMicro(at.Load()) }
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true, Now: now, DisableDenyCache: true})
	for _, p := range testworld.Holdable() {
		p.Period, p.Limit = 1000*time.Hour, 100
		for round := range 4 {
			key := fmt.Sprint("k", round)
			testworld.Must(t)(l.AllowN(ctx, p, key, 50))
			h := testworld.Reserve(t, l, p.Request(key, 20), time.Second)
			expired := round%2 == 1
			if expired {
				at.Add(time.Second.Microseconds())
			}
			var mu sync.Mutex
			settled := map[float64]int{} // by units: how many did not learn of another's end
			cancelled, ended := 0, 0
			var wg sync.WaitGroup
			for i := range 32 {
				units := float64(1 + i%3)
				settle := func(s verbs.Limiter) (bool, error) {
					r, err := s.Settle(ctx, h.ID, units)
					return !r.Replayed, err
				}
				wg.Go(func() {
					var err error
					first := false
					switch i % 4 {
					case 0:
						first, err = settle(l)
					case 1:
						// Citus can report a deadlock where callers in and outside transactions wait for one key.
						err = limiter.RunTx(ctx, l, pool, nil, func(_ pgx.Tx, limits *limiter.Tx) error { first, err = settle(limits); return err })
					case 2:
						err = l.Cancel(ctx, h.ID)
					case 3:
						_, err = l.AllowN(ctx, p, key, 99) // gives an expired reservation back
					}
					mu.Lock()
					defer mu.Unlock()
					switch {
					case errors.Is(err, limiter.ErrReservationEnded):
						ended++
					case err != nil:
						t.Errorf("%v", err)
					case i%4 < 2 && first:
						settled[units]++
					case i%4 == 2:
						cancelled++
					}
				})
			}
			wg.Wait()
			all := 0
			want := 50.0
			for units, n := range settled {
				all += n
				want += units
			}
			// Either one settled and all others got its answer, or none did.
			if all > 1 || all == 0 && cancelled == 0 || all == 1 && !expired && cancelled > 0 {
				t.Errorf("%s: settled %v, cancelled %d, %d were refused because it had ended", testworld.Variant(p), settled, cancelled, ended)
			}
			if got := testworld.Level(t, l, p, key); !testworld.Near(got, want) {
				t.Errorf("%s: level %v, want %v: settled %v, cancelled %d", testworld.Variant(p), got, want, settled, cancelled)
			}
		}
	}
}
