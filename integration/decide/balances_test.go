package decide

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// prepaid is the base of histories of balances.
var prepaid = limiter.Policy{Name: "prepaid", Algorithm: limiter.Balance}

// TestBalancesAsMemory: over each driver, and in the caller's transaction and its savepoints,
// balances are decided and kept as by a limiter in memory, to the last bit, with clocks that are
// set back and a janitor that sweeps. In each row what was granted and is owed is what is left,
// was spent and has expired.
func TestBalancesAsMemory(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	var dbs []*sql.DB
	for _, driver := range testworld.SQLDrivers {
		dbs = append(dbs, testworld.ConnectSQL(t, driver, address))
	}
	d := search.Draw{Equal: true, Operations: search.Balances + " sweep"}
	t.Run("histories", func(t *testing.T) {
		testworld.Search(t, d, 100, func(t *testing.T) func(*search.History) search.Subject {
			return func(*search.History) search.Subject {
				s, config := testworld.NewSubject(t)
				s.Apply = nil
				s.Sweep = func() error {
					sweeper := must.OK(janitor.New(pool, &janitor.Config{Now: s.Clock.Now}))(t)
					_, err := sweeper.Sweep(t.Context())
					return err
				}
				s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
				for _, db := range dbs {
					s.Ways = append(s.Ways, search.By(testworld.NewSQL(t, db, config))...)
				}
				return s
			}
		}, prepaid)
	})
	sums := testworld.Value[string](t, pool, `SELECT concat_ws(' ', count(*) FILTER (WHERE total_expired > 0) > 0, count(*) FILTER (WHERE debt > 0) > 0, count(*) FILTER (WHERE cardinality(numbers) > 2) > 0,
		count(*) FILTER (WHERE total_granted + debt <> units + later + total_spent + total_expired OR cardinality(numbers) <> cardinality(lefts)
			OR later <> coalesce((SELECT sum(u.has) FROM unnest(lefts[2 :]) AS u (has)), 0) OR (units > 0) <> (cardinality(numbers) > 0) OR units > coalesce(lefts[1], 0) OR units < 0 OR later < 0 OR debt < 0))
		FROM pglimit_balance`)
	if sums != "t t t 0" {
		t.Errorf("rows with expired units, with debts, with several lots, and rows whose sums differ: %s", sums)
	}
}

// TestBalancesInBatches: requests that share statements are decided as if they came one after the
// other.
func TestBalancesInBatches(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	testworld.SearchBatches(t, search.Draw{}, 20, func(t *testing.T, c limiter.Config) *testworld.Gate { return testworld.NewGate(t, url, c) }, prepaid)
}

// TestBalanceSpendsOnce: of 64 callers at once, of all drivers, exactly as many are granted as
// there are units in lots that have not expired, while grants come in and one of each idempotency
// key adds units.
func TestBalanceSpendsOnce(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	var all []*limiter.Limiter
	clock := new(conformance.Clock)
	for _, open := range testworld.Drivers(t, url) {
		all = append(all, open(&limiter.Config{Now: clock.Now}), open(&limiter.Config{Now: clock.Now}))
	}
	for round := range 12 {
		p := prepaid
		p.Name, p.Overdraft = fmt.Sprint("round-", round), float64(round%3)
		grant := func(l *limiter.Limiter, units float64, o limiter.GrantOptions) {
			t.Helper()
			if r, err := l.Grant(t.Context(), p, "k", units, o); err != nil || r.Granted != units {
				t.Errorf("got %+v, %v", r, err)
			}
		}
		grant(all[0], 5, limiter.GrantOptions{Expires: clock.Now().Add(time.Second)})
		grant(all[0], 10, limiter.GrantOptions{Expires: clock.Now().Add(time.Hour)})
		clock.Set(int64(round+1) * time.Second.Microseconds())
		var granted atomic.Int64
		var working sync.WaitGroup
		start := make(chan struct{})
		for i := range 64 {
			working.Go(func() {
				<-start
				l := all[i%len(all)]
				if i%4 == 0 {
					grant(l, 3, limiter.GrantOptions{IdempotencyKey: fmt.Sprint(i % 8), Priority: i % 3})
				}
				for range 2 {
					r, err := l.AllowN(t.Context(), p, "k", 1)
					if err != nil {
						t.Error(err)
					}
					granted.Add(int64(r.Granted))
				}
			})
		}
		close(start)
		working.Wait()
		for must.OK(all[0].Allow(t.Context(), p, "k"))(t).Allowed {
			granted.Add(1)
		}
		u := must.OK(all[0].Usage(t.Context(), p, "k"))(t)
		if want := int64(10 + 2*3 + p.Overdraft); granted.Load() != want || u.Granted != 15+6 || u.Expired != 5 || u.Spent != float64(want) || u.Debt != p.Overdraft {
			t.Fatalf("round %d: %d granted, want %d: %+v", round, granted.Load(), want, u)
		}
	}
}

// TestGrantWithPayment: units and the payment for them are committed or rolled back together, in
// each way to use limits in a transaction.
func TestGrantWithPayment(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, "CREATE TABLE payments (name text)")
	for i, w := range testworld.Ways(t, address, false) {
		p := prepaid
		p.Name = fmt.Sprint("way-", i)
		for n, commits := range []bool{false, true, false, true} {
			o := limiter.GrantOptions{}
			if n > 1 {
				o.IdempotencyKey = "payment"
			}
			tx := w.Start(t, "INSERT INTO payments VALUES ('"+p.Name+"')")
			if r, err := tx.Grant(t.Context(), p, "k", 10, o); err != nil || r.Granted != 10 {
				t.Fatalf("%+v, %v", r, err)
			}
			tx.End(t, commits)
		}
		u := must.OK(w.L.Usage(t.Context(), p, "k"))(t)
		if n := testworld.Value[int](t, pool, "SELECT count(*) FROM payments WHERE name = '"+p.Name+"'"); n != 2 || u.Granted != 20 {
			t.Errorf("%d payments: %+v", n, u)
		}
	}
}

// TestGrantAboveManyLots: the 101st lot is refused by the database too, and one whose end is past
// by its clock.
func TestGrantAboveManyLots(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	now := time.Now()
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: func() time.Time { return now }})
	for range 100 {
		must.OK(l.Grant(t.Context(), prepaid, "k", 1, limiter.GrantOptions{}))(t)
	}
	for _, once := range []string{"", "once"} {
		if _, err := l.Grant(t.Context(), prepaid, "k", 1, limiter.GrantOptions{IdempotencyKey: once}); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "the key has 100") {
			t.Error(err)
		}
	}
	now = now.Add(-time.Minute) // behind the row's clock
	for _, key := range []string{"k", "new"} {
		_, err := l.Grant(t.Context(), prepaid, key, 1, limiter.GrantOptions{Expires: now.Add(time.Second)})
		if over := errors.Is(err, limiter.ErrInvalid) && strings.Contains(err.Error(), "Expires"); over != (key == "k") {
			t.Error(key, err)
		}
	}
	if u := must.OK(l.Usage(t.Context(), prepaid, "k"))(t); u.Granted != 100 || len(u.Lots) != 100 {
		t.Errorf("%+v", u)
	}
}
