package testworld

import (
	"cmp"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// Variants is every algorithm in each of its forms, with limit units per
// period and that burst. Variant names one.
var Variants, Variant = search.Variants, search.Name

// NewLimiter creates a limiter with a long Timeout unless config sets one.
func NewLimiter(t testing.TB, pool *pgxpool.Pool, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	l, err := limiter.New(pool, WithPatience(config))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// WithPatience returns config with a Timeout that holds on a busy machine, unless config
// sets one.
func WithPatience(config *limiter.Config) *limiter.Config {
	var all limiter.Config
	if config != nil {
		all = *config
	}
	if all.Timeout == 0 {
		all.Timeout = time.Minute
	}
	return &all
}

// NewSQL is NewLimiter over database/sql.
func NewSQL(t testing.TB, db *sql.DB, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	l, err := limiter.NewSQL(db, WithPatience(config))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Must fails the test on an error.
func Must(t testing.TB) func(limiter.Result, error) limiter.Result {
	t.Helper()
	return func(r limiter.Result, err error) limiter.Result {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// MustAll is Must for AllowAll.
func MustAll(t testing.TB) func(limiter.Results, error) limiter.Results {
	return func(all limiter.Results, err error) limiter.Results {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// Near reports whether two levels are equal but for what leaks during a test.
func Near(a, b float64) bool { return a-b < 1e-3 && b-a < 1e-3 }

// SQLDrivers are the names of the tested database/sql drivers.
var SQLDrivers = []string{"pgx", "postgres"} // the latter is lib/pq

// ConnectSQL opens a *sql.DB that closes when the test ends.
func ConnectSQL(t testing.TB, driver, address string) *sql.DB {
	t.Helper()
	if driver == "postgres" {
		address = WithoutTLS(t, address)
	}
	db, err := sql.Open(driver, sqlInWorld(t, driver, address))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(8) // otherwise most of the time goes into connecting
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// WithoutTLS adds sslmode=disable if the address has no sslmode. lib/pq requires TLS by
// default; the other drivers accept either.
func WithoutTLS(t testing.TB, address string) string {
	t.Helper()
	if !strings.Contains(address, "://") {
		return "sslmode=disable " + address // the last value counts
	}
	u := parse(t, address)
	if q := u.Query(); !q.Has("sslmode") {
		q.Set("sslmode", "disable")
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// Through returns the database's URL with another host and port in place of the server's,
// which may be a socket.
func Through(t testing.TB, address, host string) string {
	t.Helper()
	u := parse(t, address)
	u.Host = host
	query := u.Query()
	query.Del("host")
	query.Del("port")
	u.RawQuery = query.Encode()
	return u.String()
}

// OverDrivers runs a test for each driver.
func OverDrivers(t *testing.T, f func(t *testing.T, driver string)) {
	t.Parallel()
	for _, driver := range SQLDrivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, driver)
		})
	}
}

// OverPools runs a test over a pool of pgx and over a *sql.DB of each driver, with a
// migrated database for each. pool is of the same database.
func OverPools(t *testing.T, f func(t *testing.T, pool *pgxpool.Pool, over any)) {
	OverEach(t, func(t *testing.T, connect func(address string) any) {
		address := NewDatabase(t)
		f(t, Connect(t, address), connect(address)) // two pools: a test may close one
	})
}

// OverEach runs a test for each kind of pool. connect opens one, which closes when the test
// ends.
func OverEach(t *testing.T, f func(t *testing.T, connect func(address string) any)) {
	t.Parallel()
	for _, driver := range append([]string{""}, SQLDrivers...) {
		t.Run(cmp.Or(driver, "pool"), func(t *testing.T) {
			t.Parallel()
			f(t, func(address string) any {
				if driver == "" {
					return Connect(t, address)
				}
				return ConnectSQL(t, driver, address)
			})
		})
	}
}

// Drivers returns how to make a limiter over each driver, which share the connections of
// one pool.
func Drivers(t testing.TB, address string) map[string]func(*limiter.Config) *limiter.Limiter {
	t.Helper()
	pool := Connect(t, address)
	all := map[string]func(*limiter.Config) *limiter.Limiter{
		"pgx": func(config *limiter.Config) *limiter.Limiter { return NewLimiter(t, pool, config) },
	}
	for _, driver := range SQLDrivers {
		db := ConnectSQL(t, driver, address)
		all["database/sql of "+driver] = func(config *limiter.Config) *limiter.Limiter { return NewSQL(t, db, config) }
	}
	return all
}
