package main

import (
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// TestRun runs the program twice on one database, with and without prepared statements.
func TestRun(t *testing.T) {
	t.Parallel()
	const want = `60.00: ordered, 40.00 are left
30.00: ordered, 10.00 are left
20.00: over budget, 10.00 are left
10.00: ordered, 0.00 are left
in the table: 60.00
in the table: 30.00
in the table: 10.00
100.00 spent
`
	for _, prepared := range []bool{false, true} {
		address := testdb.Empty.New(t)
		for range 2 { // and again, on the tables and rows of the first run
			var out strings.Builder
			if err := run(t.Context(), address, &gorm.Config{PrepareStmt: prepared}, &out); err != nil || out.String() != want {
				t.Fatalf("prepared %v: %v, printed:\n%s", prepared, err, &out)
			}
		}
	}
}
