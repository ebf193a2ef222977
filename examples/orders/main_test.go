package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testdb.Main(m, migrate) }

// march is in the middle of a month, so that no test runs across the end of one.
var march = at(time.Date(2026, time.March, 15, 12, 0, 0, 0, time.UTC))

func at(t time.Time) *limiter.Config {
	return &limiter.Config{Timeout: time.Minute, Now: func() time.Time { return t }}
}

// newShop connects to a database as one process does. It applies each change to the pool's
// configuration first.
func newShop(t *testing.T, url string, config *limiter.Config, changes ...func(*pgxpool.Config)) *shop {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(c)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	limits, err := limiter.New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return &shop{pool, limits}
}

// isolation sets the default isolation of all transactions.
func isolation(level string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level }
}

func (s *shop) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// one returns the single value of a query.
func one[T any](t *testing.T, s *shop, sql string, args ...any) (v T) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// eventually polls until is returns true. Use it for what the server does not announce.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	hang := time.NewTimer(time.Minute) // prevents a hang
	defer hang.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-hang.C:
			t.Fatalf("wait until %s: it did not happen", what)
		}
	}
}

// bounded returns the test's context with a timeout, to prevent a hang.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// agree checks that the orders' sum equals the spend, to the cent, and returns it.
func (s *shop) agree(t *testing.T, budget limiter.Policy, key string) float64 {
	t.Helper()
	st, err := s.limits.Usage(t.Context(), budget, key)
	if err != nil {
		t.Fatal(err)
	}
	ordered := one[float64](t, s, `SELECT coalesce(sum(cents), 0)::float8 FROM orders WHERE $1 IN (account, company)`, key)
	if ordered != st.Spent || st.Reserved != 0 || st.Remaining != budget.Limit-ordered {
		t.Errorf("%s: %v cents were ordered; spent %v, held %v, left %v", key, ordered, st.Spent, st.Reserved, st.Remaining)
	}
	if ordered > budget.Limit {
		t.Errorf("%s: %v cents were ordered, and the budget is %v", key, ordered, budget.Limit)
	}
	return ordered
}

// want checks that exactly that many cents were ordered and spent.
func (s *shop) want(t *testing.T, budget limiter.Policy, key string, cents float64) {
	t.Helper()
	if got := s.agree(t, budget, key); got != cents {
		t.Errorf("%s: %v cents were ordered, want %v", key, got, cents)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	url := testdb.Empty.New(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // and again, on the tables and rows of the first run
		var out strings.Builder
		if err := run(t.Context(), url, march, &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), "```\n"+out.String()+"```\n") {
			t.Errorf("README.md does not show what the program prints:\n%s", &out)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), "", nil, io.Discard); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("without DATABASE_URL: %v", err)
	}
}
