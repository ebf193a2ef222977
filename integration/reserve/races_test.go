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

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveFreedByTheResetThatWaited: a Reserve had locked the key's row when the Reset
// arrived. The Reset forgets it with the row, and its end gives nothing back at the
// expense of others.
func TestReserveFreedByTheResetThatWaited(t *testing.T) {
	t.Parallel()
	for _, p := range bed.Holdable() {
		p.Period = 1000 * time.Hour
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a transaction: %v", bed.Variant(p), inTx), func(t *testing.T) {
				t.Parallel()
				ctx := context.Background()
				pool := bed.NewPool(t)
				l := bed.NewLimiter(t, pool, nil)
				bed.Must(t)(l.Allow(ctx, p, "k"))
				reserving := bed.Begin(t, pool, pgx.TxOptions{})
				h := bed.Reserve(t, l.InTx(reserving), p.Request("k", 5), time.Hour)
				done := make(chan error, 1)
				go func() {
					if !inTx {
						done <- l.Reset(ctx, p, "k")
						return
					}
					done <- pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return l.InTx(tx).Reset(ctx, p, "k") })
				}()
				bed.Eventually(t, "the reset waits for the row", func(ctx context.Context) (bool, error) {
					n, err := bed.Blocked(ctx, pool)
					return n == 1, err
				})
				if err := errors.Join(reserving.Commit(ctx), <-done); err != nil {
					t.Fatal(err)
				}
				bed.Must(t)(l.AllowN(ctx, p, "k", 10))
				if err := l.Cancel(ctx, h.ID); err != nil || !bed.Near(bed.Level(t, l, p, "k"), 10) {
					t.Errorf("level %v after the cancel, %v: units can pass twice", bed.Level(t, l, p, "k"), err)
				}
			})
		}
	}
}

// TestReserveEndsOnce: if many callers end a reservation at once, in all possible ways,
// one succeeds, and the key changes once.
func TestReserveEndsOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.Connect(t, bed.NewDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 32 })
	var at atomic.Int64
	at.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	now := func() time.Time { return time.UnixMicro(at.Load()) }
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true, Now: now, DisableDenyCache: true})
	for _, p := range bed.Holdable() {
		p.Period, p.Limit = 1000*time.Hour, 100
		for round := range 4 {
			key := fmt.Sprint("k", round)
			bed.Must(t)(l.AllowN(ctx, p, key, 50))
			h := bed.Reserve(t, l, p.Request(key, 20), time.Second)
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
				settle := func(s limiter.Decider) (bool, error) {
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
						err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { first, err = settle(l.InTx(tx)); return err })
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
				t.Errorf("%s: settled %v, cancelled %d, %d were refused because it had ended", bed.Variant(p), settled, cancelled, ended)
			}
			if got := bed.Level(t, l, p, key); !bed.Near(got, want) {
				t.Errorf("%s: level %v, want %v: settled %v, cancelled %d", bed.Variant(p), got, want, settled, cancelled)
			}
		}
	}
}

// TestReserveStorm: many callers do random things to a few keys at once. In the end the
// keys count exactly what was spent and is reserved, it was never more than the limit, and
// there was no deadlock.
func TestReserveStorm(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	for i, w := range bed.Ways(t, address, false)[:3] {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := bed.Connect(t, address)
			s := reserveStorm{w: w, pool: pool, keys: []string{"a", "b", "c"}}
			for _, p := range bed.Holdable() {
				p.Name, p.Limit, p.Period = fmt.Sprintf("%s-%d", p.Name, i), 25, 100_000*time.Hour
				p.Tick = 0
				s.policies = append(s.policies, p)
			}
			s.run(t)
		})
	}
	t.Cleanup(func() {
		conn := bed.ConnectOnce(t, address)
		var n int
		if err := conn.QueryRow(context.Background(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n); err != nil || n != 0 {
			t.Errorf("%d deadlocks, %v", n, err)
		}
	})
}

// holdStorm is many concurrent callers of a few keys, and what was admitted.
type reserveStorm struct {
	w        bed.Way
	pool     *pgxpool.Pool
	policies []limiter.Policy
	keys     []string

	mu           sync.Mutex
	spent        map[string]float64 // by policy and key
	above        map[string]float64 // how much of it may exceed the limit
	denied       int
	reservations []stormReservation
}

type stormReservation struct {
	reservation limiter.Reservation
	request     limiter.Request
}

func (s *reserveStorm) spend(in limiter.Request, units float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent[in.Policy.Name+" "+in.Key] += units
	if units == 0 {
		s.denied++
	}
}

func (s *reserveStorm) run(t *testing.T) {
	ctx := context.Background()
	s.spent, s.above = map[string]float64{}, map[string]float64{}
	j := bed.NewJanitor(t, s.pool, &janitor.Config{BatchSize: 5})
	var wg sync.WaitGroup
	for worker := range 12 {
		wg.Go(func() {
			for i := range 40 {
				p := s.policies[(worker+i)%len(s.policies)]
				request := p.Request(s.keys[(worker*7+i)%len(s.keys)], float64(1+(worker+3*i)%9))
				if err := s.step(ctx, (worker+i*5)%11, request); err != nil {
					t.Errorf("step %d: %v", (worker+i*5)%11, err)
				}
			}
		})
	}
	swept := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(swept)
		for {
			if _, err := j.Sweep(ctx); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-swept
	if n := bed.Value[int](t, s.pool, "SELECT count(*) FROM pglimit_reservation WHERE state = 'expired' AND policy LIKE $1", "%"+s.policies[0].Name[len("variant-0"):]); n == 0 || s.denied == 0 {
		t.Errorf("%d reservations expired, %d requests were denied: the storm proves little", n, s.denied)
	}
	for _, h := range s.reservations { // left open
		s.settle(ctx, t, h)
	}
	for _, p := range s.policies {
		for _, key := range s.keys {
			got, want, above := bed.Level(t, s.w.L, p, key), s.spent[p.Name+" "+key], s.above[p.Name+" "+key]
			if !bed.Near(got, want) || want == 0 || want > p.Limit+above {
				t.Errorf("%s %s: the key holds %v, and %v was spent, %v of it above if need be", bed.Variant(p), key, got, want, above)
			}
		}
	}
}

// settle ends a reservation with 1 unit, expired or not.
func (s *reserveStorm) settle(ctx context.Context, t *testing.T, h stormReservation) {
	if _, err := s.w.L.Settle(ctx, h.reservation.ID, 1); err != nil {
		t.Error(err)
	}
	s.spend(h.request, 1)
	s.above[h.request.Policy.Name+" "+h.request.Key]++
}

// step does one random thing.
func (s *reserveStorm) step(ctx context.Context, what int, request limiter.Request) error {
	switch what {
	case 0, 1: // alone or in a batch
		r, err := s.w.L.Do(ctx, request)
		s.spend(request, r.Granted)
		return err
	case 2: // all keys of the policy
		var requests []limiter.Request
		for _, key := range s.keys {
			requests = append(requests, request.Policy.Request(key, 1))
		}
		all, err := s.w.L.AllowAll(ctx, requests...)
		for _, in := range requests {
			if all.Allowed {
				s.spend(in, 1)
			}
		}
		return err
	case 3: // in a transaction, which commits or rolls back
		return s.inTx(ctx, request.Cost < 5, func(tx *limiter.Tx) (func(), error) {
			r, err := tx.Do(ctx, request)
			return func() { s.spend(request, r.Granted) }, err
		})
	case 4: // left to expire, or open to the end
		h, err := s.w.L.Reserve(ctx, request, time.Hour)
		if err != nil || !h.Result.Allowed {
			return err
		}
		if int(request.Cost)%4 > 0 { // the hour has passed
			_, err = s.pool.Exec(ctx, "UPDATE pglimit_reservation SET expires_at_us = created_at_us WHERE id = $1", bed.StoredID(h.ID))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reservations = append(s.reservations, stormReservation{h, request})
		return err
	case 5:
		h, err := s.w.L.Reserve(ctx, request, time.Hour)
		if err == nil && h.Result.Allowed {
			err = twice(func() error { return s.w.L.Cancel(ctx, h.ID) })
		}
		return err
	case 6, 7: // settled below, or above
		h, err := s.w.L.Reserve(ctx, request, time.Hour)
		if err != nil || !h.Result.Allowed {
			return err
		}
		units := float64(what - 6 + int(request.Cost)/2)
		s.spend(request, units)
		return twice(func() error { return second(s.w.L.Settle(ctx, h.ID, units)) })
	case 8: // reserved here and settled in a transaction, which commits or rolls back
		h, err := s.w.L.Reserve(ctx, request, time.Hour)
		if err != nil || !h.Result.Allowed {
			return err
		}
		commit := request.Cost < 5
		err = s.inTx(ctx, commit, func(tx *limiter.Tx) (func(), error) {
			_, err := tx.Settle(ctx, h.ID, 1)
			return func() { s.spend(request, 1) }, err
		})
		if !commit && err == nil {
			return s.w.L.Cancel(ctx, h.ID)
		}
		return err
	case 9: // by several callers at once under one idempotency key
		request.IdempotencyKey = fmt.Sprint(request.Key, request.Cost)
		r, err := s.w.L.Do(ctx, request)
		if !r.Replayed {
			s.spend(request, r.Granted)
		}
		return err
	default: // the same in a transaction
		request.IdempotencyKey = fmt.Sprint(request.Key, request.Cost)
		return s.inTx(ctx, true, func(tx *limiter.Tx) (func(), error) {
			r, err := tx.Do(ctx, request)
			return func() {
				if !r.Replayed {
					s.spend(request, r.Granted)
				}
			}, err
		})
	}
}

// inTx runs f in a transaction, and the function that f returns if it commits.
func (s *reserveStorm) inTx(ctx context.Context, commit bool, f func(*limiter.Tx) (func(), error)) error {
	tx, err := s.w.Begin(ctx)
	if err != nil {
		return err
	}
	then, err := f(tx.Tx)
	if err != nil {
		return errors.Join(err, tx.Close(ctx, false))
	}
	if err := tx.Close(ctx, commit); err != nil || !commit {
		return err
	}
	then()
	return nil
}

// twice runs the same twice at once.
func twice(f func() error) error {
	other := make(chan error, 1)
	go func() { other <- f() }()
	return errors.Join(f(), <-other)
}
