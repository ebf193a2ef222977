package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testdb.Main(m, migrate) }

// newShop returns a shop over a new database, whose clock shows *now.
func newShop(t *testing.T, now *time.Time) *shop {
	pool := testdb.Pool(t, testdb.Migrated)
	return &shop{pool, testdb.Limiter(t, pool, &limiter.Config{Now: func() time.Time { return *now }})}
}

// march is in the middle of a month, so that no test runs across the end of one.
var march = time.Date(2026, time.March, 15, 12, 0, 0, 0, time.UTC)

// want checks that exactly that many cents were ordered and spent.
func (s *shop) want(t *testing.T, budget limiter.Policy, key string, cents float64) {
	t.Helper()
	st, err := s.limits.Usage(t.Context(), budget, key)
	if err != nil || st.Spent != cents {
		t.Errorf("%s: %+v, %v, want %v spent", key, st, err, cents)
	}
	var ordered float64
	const sum = `SELECT coalesce(sum(cents), 0)::float8 FROM orders WHERE $1 IN (account, company)`
	if err := s.pool.QueryRow(t.Context(), sum, key).Scan(&ordered); err != nil || ordered != cents {
		t.Errorf("%s: %v cents were ordered, %v, want %v", key, ordered, err, cents)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	url := testdb.Empty.New(t)
	for range 2 { // and again, on the tables and rows of the first run
		var out strings.Builder
		if err := run(t.Context(), url, &limiter.Config{Timeout: time.Minute, Now: func() time.Time { return march }}, &out); err != nil {
			t.Fatal(err)
		}
		testdb.InREADME(t, out.String())
	}
}

// TestOrderAndSpendTogether: both exist after the commit; neither exists after a denial or
// a failed commit.
func TestOrderAndSpendTogether(t *testing.T) {
	t.Parallel()
	for _, company := range []string{"", "initech"} {
		s := newShop(t, &march)
		order := func(number string, cents int64) error {
			return s.place(t.Context(), Order{Account: "alice", Number: number, Company: company, Cents: cents})
		}
		if err := order("1", 70_00); err != nil {
			t.Fatal(err)
		}
		var over *OverBudgetError
		april := time.Date(2026, time.March, 31, 22, 0, 0, 0, time.UTC) // in Vienna
		if err := order("2", 30_01); !errors.As(err, &over) || over.Budget != "account-budget" || over.Left != 30_00 || !over.Renewed.Equal(april) {
			t.Errorf("over budget: %v", err)
		}
		if err := order("2", 100_01); !errors.As(err, &over) || !over.Renewed.IsZero() {
			t.Errorf("above the whole budget: %v", err)
		}
		if _, err := s.pool.Exec(t.Context(), `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no commit'; END $$;
			CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`); err != nil {
			t.Fatal(err)
		}
		if err := order("2", 30_00); err == nil {
			t.Error("the commit did not fail")
		}
		s.want(t, accountBudget, "alice", 70_00)
		if company != "" {
			s.want(t, companyBudget, company, 70_00)
		}
	}
}

// TestPlacedAgain: an order counts once however often it is sent, in its own month. Its
// number identifies it alone.
func TestPlacedAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 31, 21, 59, 0, 0, time.UTC) // a minute before April in Vienna
	s := newShop(t, &now)
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
	own.Company, paid.Company = "initech", ""
	place(own, errTaken)
	place(paid, errTaken)
	own.Company = ""
	now = now.Add(24 * time.Hour)
	place(own, errTaken) // forgotten, except for the order itself
	if st, err := s.limits.Usage(t.Context(), accountBudget, "alice"); err != nil || st.Spent != 0 {
		t.Errorf("April: %+v, %v", st, err)
	}
}
