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
// was spent and has expired, and each reservation has what each lot gave to it. Most
// policies have ledgers, whose entries are in sum what the rows have.
func TestBalancesAsMemory(t *testing.T) {
	t.Parallel()
	for operations, reserved := range map[string]string{
		search.Balances:                        "t t 0",
		search.Without(search.Balances, "all"): "t t 0", // with ledgers, where a denied AllowAll leaves an empty row as of its time
		search.Without(search.Balances, "reserve", "reserve_up_to", "settle", "cancel") + " sweep": "f f 0", // a sweep gives back earlier than the model does
	} {
		address := testworld.NewDatabase(t)
		pool := testworld.Connect(t, address)
		var dbs []*sql.DB
		for _, driver := range testworld.SQLDrivers {
			dbs = append(dbs, testworld.ConnectSQL(t, driver, address))
		}
		t.Run("histories", func(t *testing.T) {
			testworld.Search(t, search.Draw{Equal: true, Operations: operations, Ledgers: !strings.Contains(operations, " all ")}, 70, func(t *testing.T) func(*search.History) search.Subject {
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
		testworld.ExpectLedgers(t, pool)
		sums := testworld.Value[string](t, pool, `SELECT concat_ws(' ', count(*) FILTER (WHERE total_expired > 0) > 0, count(*) FILTER (WHERE debt > 0) > 0, count(*) FILTER (WHERE cardinality(numbers) > 2) > 0,
			count(*) FILTER (WHERE abs(total_granted + debt - (units + later + total_spent + total_expired)) > 1e-9 OR cardinality(numbers) <> cardinality(lefts)
				OR abs(later - coalesce((SELECT sum(u.has) FROM unnest(lefts[2 :]) AS u (has)), 0)) > 1e-9 OR (units > 0) <> (cardinality(numbers) > 0) OR units > coalesce(lefts[1], 0) OR units < 0 OR later < 0 OR debt < 0))
			FROM pglimit_balance`)
		if sums != "t t t 0" {
			t.Errorf("rows with expired units, with debts, with several lots, and rows whose sums differ: %s", sums)
		}
		sums = testworld.Value[string](t, pool, `SELECT concat_ws(' ', count(*) FILTER (WHERE cardinality(part_numbers) > 2) > 0, count(*) FILTER (WHERE part_numbers[cardinality(part_numbers)] = 0) > 0,
			count(*) FILTER (WHERE abs(reserved - (SELECT sum(u.units) FROM unnest(part_units) AS u (units))) > 1e-9 OR cardinality(part_numbers) > 0 AND cardinality(part_numbers) <> cardinality(part_units)))
			FROM pglimit_reservation WHERE state NOT IN ('granted', 'spent')`)
		if sums != reserved {
			t.Errorf("reservations of several lots, with a debt, and those whose parts differ from what is reserved: %s, want %s", sums, reserved)
		}
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

// TestBalanceGivesBackOnce: of callers of all drivers that reserve, settle, cancel and let expire at
// once, each reservation ends once. In the end the units granted are those left, settled and
// expired.
func TestBalanceGivesBackOnce(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	clock := new(conformance.Clock)
	var all []*limiter.Limiter
	for _, open := range testworld.Drivers(t, url) {
		all = append(all, open(&limiter.Config{Now: clock.Now}))
	}
	for round := range 8 {
		p := prepaid
		p.Name, p.Overdraft = fmt.Sprint("round-", round), float64(round%3*4)
		for lot := range 12 {
			o := limiter.GrantOptions{Priority: lot % 3}
			if lot%4 == 3 {
				o.Expires = clock.Now().Add(30 * time.Second)
			}
			must.OK(all[0].Grant(t.Context(), p, "k", 5, o))(t)
		}
		var settled atomic.Int64
		var working sync.WaitGroup
		start := make(chan struct{})
		for i := range 32 {
			working.Go(func() {
				<-start
				a, b := all[i%len(all)], all[(i+1)%len(all)]
				h, err := a.Reserve(t.Context(), p.Request("k", float64(1+i%7)), []time.Duration{10 * time.Second, time.Hour}[i%2])
				if err != nil || !h.Result.Allowed {
					if err != nil {
						t.Error(err)
					}
					return
				}
				if i == 16 {
					clock.Set(int64(round+1) * time.Minute.Microseconds())
				}
				var both sync.WaitGroup
				var ends atomic.Int64
				for _, l := range []*limiter.Limiter{a, b} {
					both.Go(func() {
						r, err := l.Settle(t.Context(), h.ID, float64(1+i%9))
						if err == nil && !r.Replayed {
							ends.Add(1)
							settled.Add(int64(1 + i%9))
						} else if err != nil && !errors.Is(err, limiter.ErrReservationEnded) {
							t.Error(err)
						}
					})
					both.Go(func() {
						if err := l.Cancel(t.Context(), h.ID); err != nil && !errors.Is(err, limiter.ErrReservationEnded) {
							t.Error(err)
						}
					})
				}
				if both.Wait(); ends.Load() > 1 {
					t.Errorf("%s was settled %d times", h.ID, ends.Load())
				}
			})
		}
		close(start)
		working.Wait()
		u, left := must.OK(all[0].Usage(t.Context(), p, "k"))(t), 0.0
		for _, lot := range u.Lots {
			left += lot.Units
		}
		if u.Granted != 60 || u.Spent != float64(settled.Load()) || u.Reserved != 0 || u.Reservations != 0 || u.Granted+u.Debt != left+u.Spent+u.Expired {
			t.Fatalf("round %d: %d settled: %+v", round, settled.Load(), u)
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

// TestBalanceView: the view has no lot that has expired among the units that are left, although no
// request has come since, and its sums are those of Usage.
func TestBalanceView(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	now := time.Now().Add(-time.Hour)
	before := testworld.NewLimiter(t, pool, &limiter.Config{Now: func() time.Time { return now }})
	for _, lot := range []limiter.GrantOptions{{Expires: now.Add(time.Minute)}, {Expires: now.Add(2 * time.Minute)}, {Expires: now.Add(24 * time.Hour)}, {}} {
		must.OK(before.Grant(t.Context(), prepaid, "k", 10, lot))(t)
	}
	must.OK(before.AllowN(t.Context(), prepaid, "k", 4))(t)
	got := testworld.Value[string](t, pool, `SELECT concat_ws(' ', units, lots, granted, spent, expired, debt, next_end_at - $1::timestamptz) FROM pglimit_balance_now`, now)
	u := must.OK(testworld.NewLimiter(t, pool, nil).Usage(t.Context(), prepaid, "k"))(t)
	if got != "20 2 40 4 16 0 1 day" || got != fmt.Sprint(u.Result.Remaining, len(u.Lots), u.Granted, u.Spent, u.Expired, u.Debt)+" 1 day" {
		t.Errorf("the view has %s, and Usage %+v", got, u)
	}
}
