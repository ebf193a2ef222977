package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

// TestOrderAndSpendTogether: both exist after the commit; neither exists after a denial or
// a failed commit.
func TestOrderAndSpendTogether(t *testing.T) {
	t.Parallel()
	for _, company := range []string{"", "initech"} {
		s := newShop(t, testdb.Migrated.New(t), march)
		order := func(number string, cents int64) error {
			return s.place(t.Context(), Order{Account: "alice", Number: number, Company: company, Cents: cents})
		}
		if err := order("1", 70_00); err != nil {
			t.Fatal(err)
		}
		s.want(t, accountBudget, "alice", 70_00)

		var over *OverBudgetError
		april := time.Date(2026, time.March, 31, 22, 0, 0, 0, time.UTC)
		if err := order("2", 30_01); !errors.As(err, &over) || over.Budget != "account-budget" || over.Left != 30_00 || !over.Renewed.Equal(april) {
			t.Errorf("over budget: %v", err)
		}
		if err := order("2", 100_01); !errors.As(err, &over) || !over.Renewed.IsZero() {
			t.Errorf("above the whole budget: %v", err)
		}
		s.want(t, accountBudget, "alice", 70_00)

		s.exec(t, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no commit'; END $$`)
		s.exec(t, `CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`)
		if err := order("2", 30_00); err == nil {
			t.Error("the commit did not fail")
		}
		s.want(t, accountBudget, "alice", 70_00)
		s.exec(t, `DROP TRIGGER fail ON orders`)
		if err := order("2", 30_00); err != nil { // the number is still free
			t.Error(err)
		}
		s.want(t, accountBudget, "alice", 100_00)
		if company != "" {
			s.want(t, companyBudget, company, 100_00)
		}
	}
}

// TestBothBudgetsOrNeither: the error names the budget without room, and the other is not
// spent.
func TestBothBudgetsOrNeither(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.Migrated.New(t), march)
	for i, c := range []struct {
		account string
		cents   int64
		over    string
	}{
		{"alice", 90_00, ""},
		{"alice", 20_00, "account-budget"},
		{"bob", 70_00, "company-budget"},
		{"bob", 60_00, ""},
		{"carol", 1, "company-budget"},
	} {
		err := s.place(t.Context(), Order{Account: c.account, Number: fmt.Sprint(i), Company: "initech", Cents: c.cents})
		var over *OverBudgetError
		if errors.As(err, &over); (err == nil) != (c.over == "") || err != nil && (over == nil || over.Budget != c.over) {
			t.Errorf("order %d: %v, want %q", i, err, c.over)
		}
	}
	s.want(t, accountBudget, "alice", 90_00)
	s.want(t, accountBudget, "bob", 60_00)
	s.want(t, accountBudget, "carol", 0)
	s.want(t, companyBudget, "initech", 150_00)
}

// TestPlacedAgain: an order counts once however often it is sent, in its own month. Its
// number identifies it alone.
func TestPlacedAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 31, 21, 59, 0, 0, time.UTC) // a minute before April in Vienna
	s := newShop(t, testdb.Migrated.New(t), &limiter.Config{Timeout: time.Minute, Now: func() time.Time { return now }})
	own := Order{Account: "alice", Number: "1", Cents: 60_00}
	paid := Order{Account: "alice", Number: "2", Company: "initech", Cents: 30_00}
	place := func(o Order, want error) {
		t.Helper()
		if err := s.place(t.Context(), o); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", o, err, want)
		}
	}
	place(own, nil)
	place(paid, nil)
	now = now.Add(time.Minute)
	place(own, nil)
	place(paid, nil)
	dearer, moved := own, paid
	dearer.Cents++
	moved.Company = "globex"
	place(dearer, limiter.ErrInvalid)
	place(moved, errTaken)
	dearer = paid
	dearer.Cents--
	place(dearer, errTaken)
	own.Company, paid.Company = "initech", ""
	place(own, errTaken)
	place(paid, errTaken)
	own.Company, paid.Company = "", "initech"
	now = now.Add(24 * time.Hour)
	place(own, errTaken) // forgotten, except for the order itself
	place(paid, nil)

	st, err := s.limits.Usage(t.Context(), accountBudget, "alice")
	if err != nil || st.Spent != 0 {
		t.Errorf("April: %+v, %v", st, err)
	}
	if n := one[int](t, s, `SELECT count(*) FROM orders`); n != 2 {
		t.Errorf("%d orders", n)
	}
	place(Order{Account: "bob", Number: "1", Cents: 60_00}, nil) // his own number 1
	place(Order{Account: "alice", Number: "3", Cents: 100_00}, nil)
}

// TestPlacedTwiceAtOnce: the second one waits for the first.
func TestPlacedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.Migrated.New(t), march)
	ctx := bounded(t)
	var running sync.WaitGroup
	for i := range 40 {
		o := Order{Account: fmt.Sprint("account ", i%5), Number: "1", Cents: 20_00}
		if i%5 > 2 {
			o.Company = "initech"
		}
		running.Go(func() {
			if err := s.place(ctx, o); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	for i := range 5 {
		s.want(t, accountBudget, fmt.Sprint("account ", i), 20_00)
	}
	s.want(t, companyBudget, "initech", 40_00)
}

// TestManyAtOnce: two processes, accounts, shared companies, and each isolation level. The
// orders' sum equals the spend, and no budget is exceeded.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url := testdb.Migrated.New(t)
			shops := []*shop{newShop(t, url, march, isolation(level)), newShop(t, url, march, isolation(level))}
			ctx := bounded(t)
			var denied, again atomic.Int64
			var running sync.WaitGroup
			for worker := range 12 {
				running.Go(func() {
					for i := range 12 {
						o := Order{
							Account: fmt.Sprint("account ", rand.IntN(5)),
							Number:  fmt.Sprint(worker, "/", i),
							Company: []string{"", "initech", "globex"}[rand.IntN(3)],
							Cents:   1_00 + rand.Int64N(30_00),
						}
						var over *OverBudgetError
						err := shops[worker%2].place(ctx, o)
						for retryable(err) { // five tries were not enough
							again.Add(1)
							err = shops[rand.IntN(2)].place(ctx, o)
						}
						if errors.As(err, &over) {
							denied.Add(1)
						} else if err != nil {
							t.Error(err)
						}
					}
				})
			}
			running.Wait()
			for i := range 5 {
				shops[0].agree(t, accountBudget, fmt.Sprint("account ", i))
			}
			for _, company := range []string{"initech", "globex"} {
				shops[1].agree(t, companyBudget, company)
			}
			placed := one[int64](t, shops[0], `SELECT count(*) FROM orders`)
			if placed+denied.Load() != 12*12 || denied.Load() == 0 {
				t.Errorf("%d were placed and %d denied, of %d", placed, denied.Load(), 12*12)
			}
			if n := one[int](t, shops[0], `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
				t.Errorf("%d deadlocks", n)
			}
			t.Logf("%d placed, %d denied, %d times more than %d tries", placed, denied.Load(), again.Load(), tries)
		})
	}
}
