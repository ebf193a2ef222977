package reserve

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// decider has the verbs that take an idempotency key.
type decider interface {
	Do(context.Context, limiter.Request) (limiter.Result, error)
	Reserve(context.Context, limiter.Request, time.Duration) (limiter.Reservation, error)
}

// twins send one request twice at once, to a key with room for one.
type twins struct {
	address string
	pool    *pgxpool.Pool
	first   *limiter.Limiter
}

func newTwins(t *testing.T) *twins {
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	return &twins{address, pool, testworld.NewLimiter(t, pool, nil)}
}

// meet admits the first in a transaction, which commits once the second's statement has
// waited for the key's row for a while. So that statement began before the commit. It
// returns both answers.
func (s *twins) meet(t *testing.T, request limiter.Request, reserve bool, second func(func(decider) error) error) (a, b limiter.Reservation) {
	t.Helper()
	do := func(d decider) (r limiter.Reservation, err error) {
		if reserve {
			return d.Reserve(t.Context(), request, time.Hour)
		}
		r.Result, err = d.Do(t.Context(), request)
		return r, err
	}
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a, err = do(s.first.InTx(tx)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- second(func(d decider) (err error) { b, err = do(d); return err })
	}()
	testworld.AwaitLongWait(t, s.pool, func() bool { return len(done) > 0 })
	testworld.Commit(t, tx)
	must.Succeed(t, testworld.Receive(t, done, "the second answer"))
	return a, b
}

// TestIdempotencyKeyTwins: of two requests under one IdempotencyKey at once, which leave no
// room, one is admitted, and the other gets its answer.
func TestIdempotencyKeyTwins(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"pgx", "database/sql of pgx", "database/sql of pq"} {
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a transaction: %v", name, inTx), func(t *testing.T) {
				t.Parallel()
				s := newTwins(t)
				w := testworld.Ways(t, s.address, false)[i]
				second := func(do func(decider) error) error {
					if !inTx {
						return do(w.L)
					}
					tx, err := w.Begin(t.Context())
					if err != nil {
						return err
					}
					err = do(tx.Tx)
					if end := tx.Close(t.Context(), err == nil); err == nil {
						err = end
					}
					return err
				}
				for _, p := range testworld.Variants(10, 1000*time.Hour) {
					for _, blockFor := range []time.Duration{0, time.Hour} {
						p.Burst, p.BlockFor = 0, blockFor
						request := p.Request("k"+blockFor.String(), 7)
						request.IdempotencyKey = "order 1"
						reserve := p.Algorithm != limiter.LeakyBucketQueue && blockFor == 0
						a, b := s.meet(t, request, reserve, second)
						a.Result.Replayed = true
						if !a.Result.Allowed || testworld.Told(b.Result) != testworld.Told(a.Result) || a.ID != b.ID {
							t.Errorf("%s, BlockFor %v: the first %+v\nthe second %+v", testworld.Variant(p), blockFor, a, b)
						}
						// No block is left of it, and a denial without a twin begins one.
						if r := testworld.Must(t)(s.first.Check(t.Context(), p, request.Key, 1)); !r.Allowed || !testworld.Near(testworld.Level(t, s.first, p, request.Key), 7) {
							t.Errorf("%s, BlockFor %v: then %+v", testworld.Variant(p), blockFor, r)
						}
						request.IdempotencyKey = "order 2"
						denied := testworld.Must(t)(w.L.Do(t.Context(), request))
						if r := testworld.Must(t)(s.first.Check(t.Context(), p, request.Key, 1)); denied.Allowed || r.Allowed != (blockFor == 0) {
							t.Errorf("%s, BlockFor %v: another request %+v, then %+v", testworld.Variant(p), blockFor, denied, r)
						}
					}
				}
			})
		}
	}
}

// TestIdempotencyKeyTwinExpired: if the twin's reservation has expired when the second request
// looks for it, it is given back, and the second request is admitted.
func TestIdempotencyKeyTwinExpired(t *testing.T) {
	t.Parallel()
	s := newTwins(t)
	later := func() time.Time { return time.Now().Add(2 * time.Hour) }
	l := testworld.NewLimiter(t, testworld.Connect(t, s.address), &limiter.Config{Now: later})
	for _, p := range testworld.Holdable() {
		p.Period, p.BlockFor = 1000*time.Hour, time.Hour
		request := p.Request("k", 7)
		request.IdempotencyKey = "order 1"
		a, b := s.meet(t, request, true, func(do func(decider) error) error { return do(l) })
		if !a.Result.Allowed || !b.Result.Allowed || b.Result.Replayed || a.ID == b.ID || !testworld.Near(testworld.Level(t, l, p, "k"), 7) {
			t.Errorf("%s: the first %+v\nthe second %+v, level %v", testworld.Variant(p), a, b, testworld.Level(t, l, p, "k"))
		}
		if r := testworld.Must(t)(l.Check(t.Context(), p, "k", 1)); !r.Allowed {
			t.Errorf("%s: a block is left: %+v", testworld.Variant(p), r)
		}
	}
}
