package main

import (
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// newDatabase creates an empty database and returns its URL with sslmode=disable: lib/pq
// requires TLS by default.
func newDatabase(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(testdb.Empty.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if q := u.Query(); !q.Has("sslmode") {
		q.Set("sslmode", "disable")
		u.RawQuery = q.Encode()
	}
	return u.String()
}

func TestRun(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	const want = `60.00: ordered, 40.00 are left
30.00: ordered, 10.00 are left
20.00: over budget, 10.00 are left
10.00: ordered, 0.00 are left
3 orders of 100.00, and 100.00 spent
`
	for range 2 { // and again, on the tables and rows of the first run
		var out strings.Builder
		if err := run(t.Context(), address, &out); err != nil || out.String() != want {
			t.Fatalf("%v, printed:\n%s", err, &out)
		}
	}
}

// TestOrdersAndBudgetAgree: many callers order from one account, each until its orders are
// placed or denied. The orders' sum equals the spend, to the cent.
func TestOrdersAndBudgetAgree(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("postgres", newDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := migrations.UpSQL(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE orders (account text, cents bigint)"); err != nil {
		t.Fatal(err)
	}
	limits, err := limiter.NewSQL(db, &limiter.Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{db, limits}
	var conflicts atomic.Int64
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range 10 {
				_, err := s.order(t.Context(), "account", 7_77)
				var denied *limiter.DeniedError
				for errors.Is(err, limiter.ErrRetryTx) { // five tries were not enough
					conflicts.Add(1)
					_, err = s.order(t.Context(), "account", 7_77)
				}
				if err != nil && !errors.As(err, &denied) {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	var cents float64
	if err := db.QueryRow("SELECT sum(cents) FROM orders").Scan(&cents); err != nil {
		t.Fatal(err)
	}
	r, err := limits.Check(t.Context(), budget, "account", 0)
	if err != nil || r.Level != cents || cents != 12*7_77 {
		t.Errorf("%v cents ordered, %v spent (%v), %d times more than five tries", cents, r.Level, err, conflicts.Load())
	}
}
