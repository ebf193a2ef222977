// Package operations tests what people run a database with, over a real PostgreSQL server:
// the doctor, whose tests make a database ill and expect the check that finds it and a fix
// that mends it; docs/operations.md, docs/grafana.json and docs/alerts.yaml.
package operations

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 3) }

// find runs one check.
func find(t *testing.T, pool *pgxpool.Pool, name string, config ...doctor.Config) doctor.Check {
	t.Helper()
	settings := doctor.Config{Only: []string{name}}
	if len(config) > 0 {
		settings = config[0]
		settings.Only = []string{name}
	}
	report, err := doctor.Run(t.Context(), pool, &settings)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Checks) != 1 || report.Checks[0].Name != name {
		t.Fatalf("%+v", report)
	}
	c := report.Checks[0]
	if (c.Status == doctor.OK) != (c.Fix == "") || c.Message == "" || strings.Contains(c.Message+c.Fix, "\n") {
		t.Errorf("%s: a line with a fix unless it is ok: %+v", name, c)
	}
	return c
}

// expect expects what a check finds: words are in its message, its fix or its details.
func expect(t *testing.T, pool *pgxpool.Pool, name string, status doctor.Status, words ...string) doctor.Check {
	t.Helper()
	return expectIn(t, find(t, pool, name), status, words...)
}

func expectIn(t *testing.T, c doctor.Check, status doctor.Status, words ...string) doctor.Check {
	t.Helper()
	for _, w := range words {
		if !says(c, w) {
			t.Errorf("%s does not say %q: %+v", c.Name, w, c)
		}
	}
	if c.Status != status {
		t.Errorf("%s: %+v, want %v", c.Name, c, status)
	}
	return c
}

func says(c doctor.Check, word string) bool {
	return strings.Contains(c.Message+"\n"+c.Fix+"\n"+strings.Join(c.Details, "\n"), word)
}

// mend runs a fix that is SQL, statement by statement, as its reader would.
func mend(t *testing.T, pool *pgxpool.Pool, fix string) {
	t.Helper()
	for statement := range strings.SplitSeq(fix, "; ") {
		if _, err := pool.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("the fix %q: %v", statement, err)
		}
	}
}
