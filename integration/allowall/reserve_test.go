package allowall

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveAllDecidesAsMemory: ReserveAll, SettleAll and CancelAll answer as a limiter in memory,
// over pgx and database/sql, and in the caller's transaction, committed or rolled back.
func TestReserveAllDecidesAsMemory(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	dbs := []*sql.DB{testworld.ConnectSQL(t, testworld.SQLDrivers[0], address), testworld.ConnectSQL(t, testworld.SQLDrivers[1], address)}
	d := search.Draw{Equal: true, Plain: true, Names: 3, Operations: "reserve_all reserve_all reserve_all settle_all settle_all cancel_all settle once all allow charge refund usage block reset begin begin commit rollback"}
	testworld.Search(t, d, 12, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config), testworld.NewSQL(t, dbs[0], config), testworld.NewSQL(t, dbs[1], config)), pool.Begin
			s.Alike = search.Rounded
			return s
		}
	}, testworld.Holdable()...)
}

// TestSettleAllNeverDeadlocks: many callers reserve, settle and cancel several keys in random
// orders, from the pool, in transactions and one by one, among requests for the same keys. None
// meets a deadlock. In the end the units in use are those settled.
func TestSettleAllNeverDeadlocks(t *testing.T) {
	t.Parallel()
	ctx, address := t.Context(), testworld.NewDatabase(t)
	pool := testworld.Connect(t, address, testworld.Connections(16))
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true})
	policies := testworld.Holdable()
	for i := range policies {
		policies[i].Limit, policies[i].Burst, policies[i].Period = 1e4, 0, 800_000*time.Hour
	}
	var mu sync.Mutex
	spent := 0.0
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 20 {
				var units float64
				var err error
				if i%2 == 0 {
					units, err = reserveAndEnd(ctx, l, policies)
				} else {
					made, e := l.ReserveAll(ctx, time.Hour, policies[0].Request("k", 2), policies[1].Request("k", 2), policies[2].Request("k", 2))
					if err = e; err == nil {
						rand.Shuffle(3, func(i, j int) { made.IDs[i], made.IDs[j] = made.IDs[j], made.IDs[i] })
						units = 3
						err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
							_, err := l.InTx(tx).SettleAll(ctx, made.IDs, 1)
							return err
						})
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				spent += units
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	sum := 0.0
	for _, p := range policies {
		u, err := l.Usage(ctx, p, "k")
		if err != nil || u.Reservations != 0 {
			t.Errorf("%s: %+v, %v", testworld.Variant(p), u, err)
		}
		sum += u.Spent
	}
	if !testworld.Near(sum, spent) {
		t.Errorf("%v in use, want %v", sum, spent)
	}
	pool.Close() // sessions report their counters when they end
	noDeadlock(t, testworld.Connect(t, address))
}

// reserveAndEnd reserves all keys, and settles or cancels them. It returns the units in use then.
func reserveAndEnd(ctx context.Context, d verbs.Limiter, policies []limiter.Policy) (units float64, err error) {
	var requests []limiter.Request
	for _, i := range rand.Perm(len(policies)) {
		requests = append(requests, policies[i].Request("k", 2))
	}
	made, err := d.ReserveAll(ctx, time.Hour, requests...)
	if err != nil || !made.Results.Allowed {
		return 0, fmt.Errorf("%+v, %w", made.Results, err)
	}
	ids := made.IDs
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	switch rand.IntN(3) {
	case 0:
		return 0, d.CancelAll(ctx, ids...)
	case 1:
		_, err = d.AllowAll(ctx, requests...)
		units = 2 * float64(len(ids))
		if err == nil {
			_, err = d.Settle(ctx, ids[0], 3)
		}
		if err == nil {
			_, err = d.SettleAll(ctx, ids, 3)
		}
		return units + 3*float64(len(ids)), err
	}
	_, err = d.SettleAll(ctx, ids, 1)
	return float64(len(ids)), err
}

// lasting returns the policies that can be reserved under, with periods that do not end in a test.
func lasting() []limiter.Policy {
	all := testworld.Holdable()
	for i := range all {
		all[i].Period = 1000 * time.Hour
	}
	return all
}

// TestReserveAllLeavesNothing: of several keys of which one has no room, none is reserved, from the
// pool and in a transaction that commits.
func TestReserveAllLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, address := t.Context(), testworld.NewDatabase(t)
	for i, w := range testworld.Ways(t, address, false) {
		for _, inTx := range []bool{false, true} {
			for _, full := range lasting() {
				key := fmt.Sprint("k", i, inTx)
				testworld.Must(t)(w.L.Charge(ctx, full, key, full.Limit))
				by := func(do func(context.Context, verbs.Limiter) error) error {
					if !inTx {
						return do(ctx, w.L)
					}
					tx, err := w.Begin(ctx)
					if err != nil {
						return err
					}
					err = do(ctx, tx.Tx)
					if end := tx.Close(ctx, true); err == nil {
						err = end
					}
					return err
				}
				var requests []limiter.Request
				for _, p := range lasting() {
					requests = append(requests, p.Request(key, 1))
				}
				if err := by(func(ctx context.Context, d verbs.Limiter) error {
					all, err := d.ReserveAll(ctx, time.Hour, requests...)
					if err == nil && (all.Results.Allowed || all.IDs != nil) {
						err = fmt.Errorf("%+v", all)
					}
					return err
				}); err != nil {
					t.Errorf("%s, %s: %v", key, testworld.Variant(full), err)
				}
				must.Succeed(t, w.L.Reset(ctx, full, key))
				for _, in := range requests {
					if u, err := w.L.Usage(ctx, in.Policy, key); err != nil || u.Reservations != 0 || u.Result.Level > 1e-3 {
						t.Errorf("%s, %s full: %s %+v, %v", key, testworld.Variant(full), testworld.Variant(in.Policy), u, err)
					}
				}
			}
		}
	}
}

// TestSettleAllLeavesAllOpen: one reservation that cannot be settled keeps all others open.
func TestSettleAllLeavesAllOpen(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := testworld.Ways(t, testworld.NewDatabase(t), false)[0]
	for _, inTx := range []bool{false, true} {
		var requests []limiter.Request
		for _, p := range lasting() {
			requests = append(requests, p.Request(fmt.Sprint("s", inTx), 2))
		}
		all := must.OK(w.L.ReserveAll(ctx, time.Hour, requests...))(t)
		last := len(all.IDs) - 1
		testworld.Must(t)(w.L.Settle(ctx, all.IDs[last], 2))
		tx := must.OK(w.Begin(ctx))(t)
		var d verbs.Limiter = w.L
		if inTx {
			d = tx.Tx
		}
		if _, err := d.SettleAll(ctx, all.IDs, 1); err == nil {
			t.Error("one was settled with other units")
		}
		if err := tx.Close(ctx, true); err != nil {
			t.Error(err)
		}
		for _, in := range requests[:last] {
			if u, err := w.L.Usage(ctx, in.Policy, in.Key); err != nil || u.Reservations != 1 {
				t.Errorf("%s: %+v, %v", testworld.Variant(in.Policy), u, err)
			}
		}
	}
}
