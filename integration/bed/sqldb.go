package bed

import (
	"database/sql"
	"net/url"
	"strings"
	"testing"

	_ "github.com/lib/pq" // the driver "postgres"
)

// IdleSession opens so many connections and leaves them to the pool.
func IdleSession(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	var conns []*sql.Conn
	for range n {
		c, err := db.Conn(t.Context())
		if err == nil {
			err = c.PingContext(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// SQLDrivers are the drivers of database/sql that are tested, as they register.
var SQLDrivers = []string{"pgx", "postgres"} // the latter is lib/pq

// ConnectSQL opens a *sql.DB that closes when the test ends.
func ConnectSQL(t testing.TB, driver, address string) *sql.DB {
	t.Helper()
	if driver == "postgres" {
		address = WithoutTLS(t, address)
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

// WithoutTLS says so where the address does not say how: lib/pq would want it,
// the others take what there is.
func WithoutTLS(t testing.TB, address string) string {
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
