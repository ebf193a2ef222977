package tx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

type effect struct {
	name string
	do   func(tx *limiter.Tx) error
}

// effects are the verbs that change a key with 4 of 10 units used.
func effects(ctx context.Context, p limiter.Policy) []effect {
	noResult := func(_ limiter.Result, err error) error { return err }
	all := []effect{
		{"do", func(tx *limiter.Tx) error { return noResult(tx.Do(ctx, p.Request("k", 2))) }},
		{"allow", func(tx *limiter.Tx) error { return noResult(tx.Allow(ctx, p, "k")) }},
		{"allow n", func(tx *limiter.Tx) error { return noResult(tx.AllowN(ctx, p, "k", 3)) }},
		{"allow up to", func(tx *limiter.Tx) error { return noResult(tx.AllowUpTo(ctx, p, "k", 9)) }},
		{"charge", func(tx *limiter.Tx) error { return noResult(tx.Charge(ctx, p, "k", 3)) }},
		{"deny", func(tx *limiter.Tx) error { return noResult(tx.AllowN(ctx, p, "k", 9)) }}, // starts a block
		{"reset", func(tx *limiter.Tx) error { return tx.Reset(ctx, p, "k") }},
	}
	once := p.Request("k", 2)
	once.IdempotencyKey = "order 1"
	all = append(all,
		effect{"twice", func(tx *limiter.Tx) error { return errors.Join(noResult(tx.Do(ctx, once)), noResult(tx.Do(ctx, once))) }},
		effect{"allow all", func(tx *limiter.Tx) error {
			all, err := tx.AllowAll(ctx, p.Request("k", 2), p.Request("other", 1), p.Request("k", 1))
			if err == nil && all.Allowed && !testworld.Near(all.PerRequest[2].Level, all.PerRequest[0].Level+1) { // as of each request
				err = fmt.Errorf("%+v", all)
			}
			return err
		}},
		effect{"deny all", func(tx *limiter.Tx) error { // starts a block
			_, err := tx.AllowAll(ctx, p.Request("k", 9), p.Request("other", 1))
			return err
		}})
	if p.Algorithm != limiter.LeakyBucketQueue {
		all = append(all,
			effect{"reserve and settle", func(tx *limiter.Tx) error {
				h, err := tx.Reserve(ctx, p.Request("k", 3), time.Hour)
				if err != nil || h.ID == "" {
					return err
				}
				return noResult(tx.Settle(ctx, h.ID, 2))
			}},
			effect{"reserve up to", func(tx *limiter.Tx) error {
				h, err := tx.ReserveUpTo(ctx, p.Request("k", 9), time.Hour)
				if err == nil && h.Result.Allowed && h.Result.Granted > 6 {
					err = fmt.Errorf("%+v", h)
				}
				return err
			}},
			effect{"cancel of two", func(tx *limiter.Tx) error {
				h, err := tx.Reserve(ctx, p.Request("k", 2), time.Hour)
				if err == nil && h.ID != "" {
					err = tx.Cancel(ctx, h.ID)
				}
				_, more := tx.Reserve(ctx, p.Request("k", 2), time.Hour)
				return errors.Join(err, more)
			}})
		all = append(all, effect{"refund", func(tx *limiter.Tx) error { return noResult(tx.Refund(ctx, p, "k", 2)) }})
	}
	return append(all, effect{"block", func(tx *limiter.Tx) error { return tx.Block(ctx, p, "k", time.Hour) }}) // last: it denies the others
}

// TestTxOfEveryWayRollsBack: in either driver's transaction, every verb's effect is rolled
// back or committed with it.
func TestTxOfEveryWayRollsBack(t *testing.T) {
	testworld.InEachWay(t, false, func(t *testing.T, w testworld.Way, p limiter.Policy) {
		ctx := t.Context()
		p.BlockFor = time.Hour
		testworld.Must(t)(w.L.AllowN(ctx, p, "k", 4))
		for _, e := range effects(ctx, p) {
			tx := w.Start(t)
			if err := e.do(tx.Tx); err != nil {
				t.Fatalf("%s, %s: %v", testworld.Variant(p), e.name, err)
			}
			if r := testworld.Must(t)(tx.Check(ctx, p, "k", 0)); r.Allowed && testworld.Near(r.Level, 4) {
				t.Errorf("%s, %s: no effect inside the transaction: %+v", testworld.Variant(p), e.name, r)
			}
			tx.End(t, false)
			if r := testworld.Must(t)(w.L.Check(ctx, p, "k", 0)); !r.Allowed || !testworld.Near(r.Level, 4) {
				t.Errorf("%s, %s: left after the rollback: %+v", testworld.Variant(p), e.name, r)
			}
		}
		tx := w.Start(t)
		testworld.Must(t)(tx.AllowN(ctx, p, "k", 3))
		testworld.Must(t)(tx.AllowN(ctx, p, "k", 9))
		tx.End(t, true)
		if r := testworld.Must(t)(w.L.Check(ctx, p, "k", 0)); r.Allowed || !testworld.Near(r.Level, 7) {
			t.Errorf("%s: after the commit, with a block: %+v", testworld.Variant(p), r)
		}
		must.Succeed(t, w.L.Unblock(ctx, p, "k"))
		tx = w.Start(t)
		must.Succeed(t, tx.Block(ctx, p, "k", time.Hour))
		must.Succeed(t, tx.Unblock(ctx, p, "k"))
		tx.End(t, true)
		if r := testworld.Must(t)(w.L.Check(ctx, p, "k", 0)); !r.Allowed {
			t.Errorf("%s: unblocked, and committed: %+v", testworld.Variant(p), r)
		}
	})
}

// TestTxKeepsTheCallersSettings: the verbs change neither how the caller's rows commit nor
// how long its statements may take. The transaction uses the pool's only connection, and
// no verb needs another. The context's end only prevents a hang.
func TestTxKeepsTheCallersSettings(t *testing.T) {
	testworld.InEachWay(t, true, func(t *testing.T, w testworld.Way, p limiter.Policy) {
		for durability, commit := range map[limiter.Durability]string{limiter.Durable: "off", limiter.Relaxed: "on"} {
			p.Durability = durability
			settings := map[string]string{"synchronous_commit": commit, "lock_timeout": "1234ms", "statement_timeout": "56789ms"}
			tx := w.Start(t)
			for name, value := range settings {
				must.Succeed(t, tx.Exec(t.Context(), "SET LOCAL "+name+" = '"+value+"'"))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			all := append(effects(ctx, p),
				effect{"check", func(tx *limiter.Tx) error { _, err := tx.Check(ctx, p, "k", 1); return err }},
				effect{"unblock", func(tx *limiter.Tx) error { return tx.Unblock(ctx, p, "k") }})
			for _, e := range all {
				if err := e.do(tx.Tx); err != nil {
					t.Fatalf("%s, %s: %v", testworld.Variant(p), e.name, err)
				}
				for name, want := range settings {
					var got string
					if err := tx.Read(t.Context(), "SHOW "+name, &got); err != nil || got != want {
						t.Errorf("%s, %s: %s is %s, was %s (%v)", testworld.Variant(p), e.name, name, got, want, err)
					}
				}
			}
			cancel()
			tx.End(t, false)
		}
	})
}

// TestTxConflicts: a concurrent change, a lock timeout and a deadlock return ErrRetryTx
// around the driver's error, FailOpen or not. Running the transaction again succeeds.
func TestTxConflicts(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	check := func(t *testing.T, w testworld.Way, r limiter.Result, err error, code string) {
		t.Helper()
		var ofPgx *pgconn.PgError
		var ofPq *pq.Error
		var got string
		switch {
		case errors.As(err, &ofPgx) && !w.PQ:
			got = ofPgx.Code
		case errors.As(err, &ofPq) && w.PQ:
			got = string(ofPq.Code)
		}
		if !errors.Is(err, limiter.ErrRetryTx) || errors.Is(err, limiter.ErrUnavailable) || got != code || r.Allowed {
			t.Errorf("got %+v, %v, want ErrRetryTx around %s", r, err, code)
		}
	}
	again := func(t *testing.T, w testworld.Way, p limiter.Policy, key string) {
		t.Helper()
		tx := w.Start(t)
		if r := testworld.Must(t)(tx.Allow(t.Context(), p, key)); !r.Allowed {
			t.Errorf("once more: %+v", r)
		}
		tx.End(t, true)
	}
	for _, w := range testworld.Ways(t, address, false) {
		p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
		t.Run(w.Name+", 40001", func(t *testing.T) {
			if testworld.Citus() {
				return // ErrUnsupported
			}
			t.Parallel()
			key := t.Name()
			tx := w.Start(t, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
			testworld.Must(t)(w.L.Allow(t.Context(), p, key))
			r, err := tx.Allow(t.Context(), p, key)
			check(t, w, r, err, "40001")
			tx.End(t, false)
			again(t, w, p, key)
		})
		t.Run(w.Name+", 55P03", func(t *testing.T) {
			t.Parallel()
			key := t.Name()
			holds := w.Start(t)
			testworld.Must(t)(holds.Allow(t.Context(), p, key))
			tx := w.Start(t, "SET LOCAL lock_timeout = '20ms'")
			r, err := tx.Allow(t.Context(), p, key)
			check(t, w, r, err, "55P03")
			tx.End(t, false)
			holds.End(t, true)
			again(t, w, p, key)
		})
		t.Run(w.Name+", 40P01", func(t *testing.T) {
			t.Parallel()
			keys := []string{t.Name() + " 1", t.Name() + " 2"}
			var txs []*testworld.Transaction
			for _, key := range keys {
				tx := w.Start(t)
				testworld.Must(t)(tx.Allow(t.Context(), p, key))
				txs = append(txs, tx)
			}
			answers := make(chan testworld.Answer, 2)
			for i, tx := range txs {
				go func() {
					r, err := tx.Allow(t.Context(), p, keys[1-i])
					_ = tx.Close(context.Background(), err == nil) // lets the other one continue
					answers <- testworld.Answer{Result: r, Err: err}
				}()
			}
			first, second := <-answers, <-answers
			if first.Err == nil {
				first, second = second, first
			}
			check(t, w, first.Result, first.Err, "40P01")
			if second.Err != nil || !second.Allowed {
				t.Errorf("the other one: %+v, %v", second.Result, second.Err)
			}
			again(t, w, p, keys[0])
		})
	}
}

// TestTxCancelled: a context that ends during a wait for a lock returns the caller's own
// error, and nothing of the transaction is left.
func TestTxCancelled(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for _, w := range testworld.Ways(t, address, false) {
		t.Run(w.Name, func(t *testing.T) {
			held := t.Name()
			p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
			holds := w.Start(t)
			testworld.Must(t)(holds.Allow(t.Context(), p, held))
			tx := w.Start(t)
			testworld.Must(t)(tx.AllowN(t.Context(), p, held+"k", 5))
			ctx, cancel := context.WithCancel(t.Context())
			errs := make(chan error, 1)
			go func() { _, err := tx.Allow(ctx, p, held); errs <- err }()
			testworld.AwaitBlocked(t, pool)
			cancel()
			if err := <-errs; !errors.Is(err, context.Canceled) || errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			_ = tx.Close(t.Context(), false) // an error with some drivers: the connection is gone
			holds.End(t, true)
			if r := testworld.Must(t)(w.L.Check(t.Context(), p, held+"k", 0)); r.Level != 0 {
				t.Errorf("left: %+v", r)
			}
			if r := testworld.Must(t)(w.L.Check(t.Context(), p, held, 0)); !testworld.Near(r.Level, 1) {
				t.Errorf("the key that was held: %+v", r)
			}
		})
	}
}

// TestTxGoesOn: neither a denial nor an invalid request fails the transaction; the
// caller's other work commits.
func TestTxGoesOn(t *testing.T) {
	testworld.InEachWay(t, false, func(t *testing.T, w testworld.Way, p limiter.Policy) {
		ctx := t.Context()
		tx := w.Start(t)
		testworld.Must(t)(tx.AllowN(ctx, p, "k", 4))
		if r := testworld.Must(t)(tx.AllowN(ctx, p, "k", 7)); r.Allowed {
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
		if _, err := tx.Allow(ctx, p, ""); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s: the empty key: %v", testworld.Variant(p), err)
		}
		if _, err := tx.AllowN(ctx, p, "k", -1); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s: a negative cost: %v", testworld.Variant(p), err)
		}
		if err := tx.Cancel(ctx, "token_bucket:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw"); !errors.Is(err, limiter.ErrNoReservation) {
			t.Errorf("%s: an unknown hold: %v", testworld.Variant(p), err)
		}
		once := p.Request("k", 1)
		once.IdempotencyKey = "order 1"
		testworld.Must(t)(tx.Do(ctx, once))
		once.Cost = 2
		if _, err := tx.Do(ctx, once); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s: the same order at another cost: %v", testworld.Variant(p), err)
		}
		once.Cost = 1
		if _, err := tx.Reserve(ctx, once, time.Hour); !errors.Is(err, limiter.ErrInvalid) && p.Algorithm != limiter.LeakyBucketQueue {
			t.Errorf("%s: the same order by another verb: %v", testworld.Variant(p), err)
		}
		once.Policy.Limit, once.Policy.Burst = 3, 0
		if r := testworld.Must(t)(tx.Do(ctx, once)); !r.Allowed || !r.Replayed {
			t.Errorf("%s: the same order under a smaller plan: %+v", testworld.Variant(p), r)
		}
		if p.Algorithm != limiter.LeakyBucketQueue {
			h, err := tx.Reserve(ctx, p.Request("k", 1), time.Hour)
			if err == nil {
				err = tx.Cancel(ctx, h.ID)
			}
			if err != nil {
				t.Fatalf("%s: %v", testworld.Variant(p), err)
			}
			if _, err := tx.Settle(ctx, h.ID, 1); !errors.Is(err, limiter.ErrReservationEnded) {
				t.Errorf("%s: a hold that has ended: %v", testworld.Variant(p), err)
			}
		}
		testworld.Must(t)(tx.AllowN(ctx, p, "k", 5))
		tx.End(t, true)
		if r := testworld.Must(t)(w.L.Check(ctx, p, "k", 0)); !testworld.Near(r.Level, 10) {
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
	})
}

// TestTxSavepoints: a rollback to a savepoint undoes and unlocks what came after it, also
// after a conflict, and the transaction goes on. Others read what was committed.
func TestTxSavepoints(t *testing.T) {
	testworld.InEachWay(t, false, func(t *testing.T, w testworld.Way, p limiter.Policy) {
		ctx := t.Context()
		holds, tx := w.Start(t), w.Start(t, "SET LOCAL lock_timeout = '20ms'")
		testworld.Must(t)(holds.Allow(ctx, p, "held"))
		testworld.Must(t)(tx.Allow(ctx, p, "k"))
		must.Succeed(t, tx.Exec(ctx, "SAVEPOINT s"))
		testworld.Must(t)(tx.AllowN(ctx, p, "k", 2))
		testworld.Must(t)(tx.AllowN(ctx, p, "other", 2))
		if _, err := tx.Allow(ctx, p, "held"); !errors.Is(err, limiter.ErrRetryTx) {
			t.Errorf("%s: of a locked key: %v", testworld.Variant(p), err)
		}
		must.Succeed(t, tx.Exec(ctx, "ROLLBACK TO s"))
		testworld.Must(t)(w.L.Allow(ctx, p, "other"))
		testworld.Must(t)(tx.AllowN(ctx, p, "k", 4))
		if r := testworld.Must(t)(w.L.Check(ctx, p, "k", 0)); r.Level != 0 {
			t.Errorf("%s: others see %+v", testworld.Variant(p), r)
		}
		tx.End(t, true)
		holds.End(t, false)
		for key, want := range map[string]float64{"k": 5, "other": 1, "held": 0} {
			if r := testworld.Must(t)(w.L.Check(ctx, p, key, 0)); !testworld.Near(r.Level, want) {
				t.Errorf("%s: %v units of %s, want %v", testworld.Variant(p), r.Level, key, want)
			}
		}
		if _, err := tx.Allow(ctx, p, "k"); !errors.Is(err, limiter.ErrMisconfigured) || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("%s: after the end: %v", testworld.Variant(p), err)
		}
	})
}
