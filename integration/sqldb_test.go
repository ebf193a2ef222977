package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// sqlDrivers are the drivers of database/sql that are tested, as they register.
var sqlDrivers = []string{"pgx", "postgres"} // the latter is lib/pq

// connectSQL opens a *sql.DB that closes when the test ends.
func connectSQL(t testing.TB, driver, address string) *sql.DB {
	t.Helper()
	if driver == "postgres" {
		address = withoutTLS(t, address)
	}
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(8) // else most of the time goes into connecting
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// withoutTLS says so where the address does not say how: lib/pq would want it,
// the others take what there is.
func withoutTLS(t testing.TB, address string) string {
	t.Helper()
	if !strings.Contains(address, "://") {
		return "sslmode=disable " + address // the last one holds
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	if q := u.Query(); !q.Has("sslmode") {
		q.Set("sslmode", "disable")
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// withPatience is config with a Timeout that a busy machine keeps too, unless it
// has one of its own.
func withPatience(config *limiter.Config) *limiter.Config {
	var all limiter.Config
	if config != nil {
		all = *config
	}
	if all.Timeout == 0 {
		all.Timeout = time.Minute
	}
	return &all
}

// newSQL is newLimiter over database/sql.
func newSQL(t testing.TB, db *sql.DB, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	l, err := limiter.NewSQL(db, withPatience(config))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// overDrivers runs a test for each driver.
func overDrivers(t *testing.T, f func(t *testing.T, driver string)) {
	t.Parallel()
	for _, driver := range sqlDrivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, driver)
		})
	}
}

func TestSQLVectors(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		db := connectSQL(t, driver, newDatabase(t))
		conformance.Run(t, "testdata/checkout/testdata/vectors", func(t *testing.T, clock *conformance.Clock) *limiter.Limiter {
			return newSQL(t, db, &limiter.Config{Now: clock.Now, DenyCacheTTL: -1})
		})
	})
}

// TestSQLDecidesAsPgx holds both drivers to the limiter over pgx, result by
// result and to the last bit, on random histories of all verbs.
func TestSQLDecidesAsPgx(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	pool := connect(t, address)
	var dbs []*sql.DB
	for _, driver := range sqlDrivers {
		dbs = append(dbs, connectSQL(t, driver, address))
	}
	var histories atomic.Int64
	for _, base := range variants(10, 10*time.Second) {
		t.Run(variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			config := &limiter.Config{Now: clock.Now, DenyCacheTTL: -1, Timeout: time.Minute}
			overPgx := newLimiter(t, pool, config)
			var overSQL []*limiter.Limiter
			for _, db := range dbs {
				overSQL = append(overSQL, newSQL(t, db, config))
			}
			rapid.Check(t, func(rt *rapid.T) {
				plans := drawPlans(rt, base, fmt.Sprintf("p%d", histories.Add(1)))
				at := int64(1_000_000_000)
				for step := range 12 {
					at = max(0, at+drawDelta(rt, plans[0]))
					clock.Set(at)
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					op := rapid.SampledFrom(ops(p.Algorithm)).Draw(rt, "op")
					cost := drawCost(rt, op, p)
					name := p.Name
					want, wantErr := conformance.Do(context.Background(), overPgx, p, op, "k", cost)
					for i, l := range overSQL {
						p.Name = fmt.Sprintf("%s-%d", name, i)
						got, err := conformance.Do(context.Background(), l, p, op, "k", cost)
						if got != want || (err == nil) != (wantErr == nil) {
							rt.Fatalf("step %d: %s %v at %d under %+v\n%s: %+v, %v\npgx: %+v, %v", step, op, cost, at, p, sqlDrivers[i], got, err, want, wantErr)
						}
					}
				}
			})
		})
	}
}

// TestSQLNeverOverAdmits lets 64 goroutines ask one cold key.
func TestSQLNeverOverAdmits(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := newDatabase(t)
		var ls []*limiter.Limiter
		for range pools {
			ls = append(ls, newSQL(t, connectSQL(t, driver, address), nil))
		}
		for _, p := range variants(capUnit, 1000*time.Hour) {
			for round := range 4 {
				if got := doubleStorm(t, ls, p, fmt.Sprint("key", round)); got != capUnit {
					t.Errorf("%s, round %d: admitted %v units of %v", variant(p), round, got, capUnit)
				}
			}
		}
	})
}

// doubleStorm is two storms on one key.
func doubleStorm(t *testing.T, ls []*limiter.Limiter, p limiter.Policy, key string) float64 {
	var admitted [2]float64
	var wg sync.WaitGroup
	for i := range admitted {
		wg.Go(func() { admitted[i] = storm(t, ls, p, key) })
	}
	wg.Wait()
	return admitted[0] + admitted[1]
}

// TestSQLStricterDefaultIsolation: as TestStricterDefaultIsolation.
func TestSQLStricterDefaultIsolation(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := newDatabase(t)
		isolated(t, connect(t, address), "repeatable read")
		l := newSQL(t, connectSQL(t, driver, address), nil)
		other := newSQL(t, connectSQL(t, driver, address), nil)
		for _, p := range variants(capUnit, 1000*time.Hour) {
			if got := storm(t, []*limiter.Limiter{l, other}, p, "k"); got != capUnit {
				t.Errorf("%s: admitted %v of %v", variant(p), got, capUnit)
			}
		}
	})
}

// TestSQLRefundOfNothing: there is no row, and the clock is read all the same.
func TestSQLRefundOfNothing(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		l := newSQL(t, connectSQL(t, driver, newDatabase(t)), nil)
		for _, p := range variants(10, time.Hour) {
			if p.Algorithm == limiter.LeakyBucketQueue {
				continue
			}
			if r := must(t)(l.Refund(t.Context(), p, "k", 1)); r.Granted != 0 || r.Remaining != 10 || r.At.Before(conformance.Epoch) {
				t.Errorf("%s: %+v", variant(p), r)
			}
		}
	})
}

// TestSQLWait queues for a turn, and gives a cancelled place back.
func TestSQLWait(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		l := newSQL(t, connectSQL(t, driver, newDatabase(t)), nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 3}
		if err := l.Wait(t.Context(), p, "k", 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- l.Wait(ctx, p, "k", 1) }()
		eventually(t, "it has its place", func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, "k", 0)
			return r.Level > 1.5, err
		})
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		eventually(t, "the place was given back", func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, "k", 0)
			return near(r.Level, 1), err
		})
		var denied *limiter.DeniedError
		if err := l.Wait(t.Context(), p, "k", 3); !errors.As(err, &denied) {
			t.Errorf("above what fits: %v", err)
		}
	})
}

// TestMigrationsUpSQL makes the tables over each driver, on one connection,
// which stays open.
func TestMigrationsUpSQL(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := emptyDatabase(t)
		db := connectSQL(t, driver, address)
		db.SetMaxOpenConns(1)
		l := newSQL(t, db, nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
		if _, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, limiter.ErrNotMigrated) {
			t.Errorf("before: %v", err)
		}
		for range 2 {
			if err := migrations.UpSQL(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		if r := must(t)(l.Allow(t.Context(), p, "k")); !r.Allowed {
			t.Errorf("%+v", r)
		}
		all, err := migrations.Status(t.Context(), connect(t, address))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if !m.Applied {
				t.Errorf("%d %s has not been run", m.Version, m.Name)
			}
		}
		if _, err := db.Exec("DELETE FROM " + migrations.VersionTable + " WHERE version_id > 0"); err != nil {
			t.Fatal(err)
		}
		if err := migrations.UpSQL(t.Context(), db); err == nil || !strings.Contains(err.Error(), "made by something else") {
			t.Errorf("the error says not what to do: %v", err)
		}
	})
}

// TestNewSQLRefuses names what is wrong.
func TestNewSQLRefuses(t *testing.T) {
	t.Parallel()
	if _, err := limiter.NewSQL(nil, nil); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "db nil: open one") {
		t.Errorf("no db: %v", err)
	}
	if _, err := limiter.NewSQL(connectSQL(t, "pgx", server.URL()), &limiter.Config{BatchStatements: -1}); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "Config.BatchStatements -1") {
		t.Errorf("a negative number: %v", err)
	}
}
