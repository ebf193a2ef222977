package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/examples/internal/testdb"
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
