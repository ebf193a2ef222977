// Package operations tests what people run a database with, over a real PostgreSQL server:
// the doctor, whose tests make a database ill and expect the check that finds it and a fix
// that mends it; docs/operations.md, docs/grafana.json and docs/alerts.yaml.
package operations

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

func TestMain(m *testing.M) { testworld.Main(m, 3) }

// find runs one check.
func find(t *testing.T, pool *pgxpool.Pool, name string, config ...doctor.Config) doctor.Check {
	t.Helper()
	settings := doctor.Config{Only: []string{name}}
	if len(config) > 0 {
		settings = config[0]
		settings.Only = []string{name}
	}
	report := must.OK(doctor.Run(t.Context(), pool, &settings))(t)
	if len(report.Checks) != 1 || report.Checks[0].Name != name {
		t.Fatalf("%+v", report)
	}
	c := report.Checks[0]
	for _, driver := range testworld.SQLDrivers {
		alike(t, pool, driver, &settings, c)
	}
	if (c.Verdict == doctor.OK) != (c.Fix+c.NextStep == "") || c.Message == "" || strings.Contains(c.Message+c.Fix+c.NextStep, "\n") {
		t.Errorf("%s: a line with a fix or a next step unless it is ok: %+v", name, c)
	}
	return c
}

// alike expects a check over database/sql to find what it found over a pool. Only pgx's
// connections show a pooler. Transactions get older, statistics arrive late, and each run
// has more connections: so it is compared with what the pool finds before it or after it.
func alike(t *testing.T, pool *pgxpool.Pool, driver string, config *doctor.Config, want doctor.Check) {
	t.Helper()
	address := pool.Config().ConnString()
	for name, value := range pool.Config().ConnConfig.RuntimeParams {
		address = strings.ReplaceAll(testworld.WithQuery(t, address, name, value).String(), "+", "%20")
	}
	db := testworld.ConnectSQL(t, driver, address)
	db.SetMaxOpenConns(int(pool.Config().MaxConns))
	defer db.Close()
	report, err := doctor.RunSQL(t.Context(), db, config)
	if want.Name == "connections" && (err == nil || want.Verdict == doctor.Fail) {
		return
	}
	if err != nil {
		t.Fatalf("over %s: %v", driver, err)
	}
	got := report.Checks[0]
	same := func(want doctor.Check) bool {
		if want.Name == "pooler" && driver != "pgx" {
			return got.Verdict == doctor.Unchecked
		}
		return got.Verdict == want.Verdict && got.Fix == want.Fix && len(got.Details) == len(want.Details) && (want.Name != "pooler" || got.Message == want.Message)
	}
	if same(want) {
		return
	}
	if again, err := doctor.Run(t.Context(), pool, config); err != nil || !same(again.Checks[0]) {
		t.Errorf("over %s: %+v, over a pool %+v; then %+v, %v", driver, got, want, again, err)
	}
}

// expect expects what a check finds: words are in its message, its fix or its details.
func expect(t *testing.T, pool *pgxpool.Pool, name string, status doctor.Verdict, words ...string) doctor.Check {
	t.Helper()
	return expectIn(t, find(t, pool, name), status, words...)
}

func expectIn(t *testing.T, c doctor.Check, status doctor.Verdict, words ...string) doctor.Check {
	t.Helper()
	for _, w := range words {
		if !says(c, w) {
			t.Errorf("%s does not say %q: %+v", c.Name, w, c)
		}
	}
	if c.Verdict != status {
		t.Errorf("%s: %+v, want %v", c.Name, c, status)
	}
	return c
}

func says(c doctor.Check, word string) bool {
	return strings.Contains(c.Message+"\n"+c.Fix+"\n"+c.FixAs+"\n"+c.NextStep+"\n"+strings.Join(c.Details, "\n"), word)
}

// mend pastes a fix, as the role of a pool.
func mend(t *testing.T, pool *pgxpool.Pool, fix string) {
	t.Helper()
	paste(t, pool.Config().ConnString(), fix)
}
