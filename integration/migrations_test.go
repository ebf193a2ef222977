package integration

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/migrations"
)

// names renders steps as "1 tables, 2 storage".
func names(steps []migrations.Step) string {
	var all []string
	for _, s := range steps {
		all = append(all, fmt.Sprint(s.Version, " ", s.Name))
	}
	return strings.Join(all, ", ")
}

const (
	allUp   = "1 tables, 2 storage, 3 views"
	allDown = "3 views, 2 storage, 1 tables"
)

// upTo and down fail the test on an error and check what was done.
func upTo(t *testing.T, pool *pgxpool.Pool, to int64, want string) {
	t.Helper()
	steps, err := migrations.UpTo(t.Context(), pool, to)
	if err != nil || names(steps) != want {
		t.Fatalf("up to %d: ran %q, error %v; want %q", to, names(steps), err, want)
	}
}

func down(t *testing.T, pool *pgxpool.Pool, to int64, want string) {
	t.Helper()
	steps, err := migrations.Down(t.Context(), pool, to)
	if err != nil || names(steps) != want {
		t.Fatalf("down to %d: undid %q, error %v; want %q", to, names(steps), err, want)
	}
}

func TestUpAndDown(t *testing.T) {
	t.Parallel()
	pool := connect(t, emptyDatabase(t))
	down(t, pool, migrations.Previous, "") // nothing to undo
	upTo(t, pool, migrations.Latest, allUp)
	whole := schema(t, pool)
	upTo(t, pool, migrations.Latest, "")
	down(t, pool, migrations.Previous, "3 views")
	down(t, pool, 1, "2 storage")
	if strings.Contains(schema(t, pool), "fillfactor") {
		t.Error("the storage settings are still there")
	}
	upTo(t, pool, 2, "2 storage")
	down(t, pool, 0, "2 storage, 1 tables")
	if left := schema(t, pool); left != "" {
		t.Errorf("down to 0 left:\n%s", left)
	}
	down(t, pool, 0, "")
	upTo(t, pool, migrations.Latest, allUp)
	if again := schema(t, pool); again != whole {
		t.Errorf("up after down made:\n%s\nwant:\n%s", again, whole)
	}
}

func TestUpAndDownOnData(t *testing.T) {
	t.Parallel()
	pool := connect(t, emptyDatabase(t))
	upTo(t, pool, 1, "1 tables")
	tables := limitTables(t, pool)
	if called, failed := callStatements(t.Context(), pool, suffix("Take")); len(failed) > 0 || len(called) < len(tables) {
		t.Fatalf("called %q: %v", called, failed)
	}
	data := contents(t, pool)
	if strings.Contains(data, "no rows") {
		t.Fatalf("a table is empty:\n%s", data)
	}
	check := func(after string) {
		t.Helper()
		if got := contents(t, pool); got != data {
			t.Errorf("after %s the tables hold:\n%s\nwant:\n%s", after, got, data)
		}
	}
	upTo(t, pool, migrations.Latest, "2 storage, 3 views")
	check("up")
	for _, table := range tables {
		if n := one[int](t, pool, `SELECT count(*) FROM `+table+`_now WHERE level >= 0 AND updated_at <= clock_timestamp()`); n != 1 {
			t.Errorf("the view of %s shows %d rows, want 1", table, n)
		}
	}
	upTo(t, pool, migrations.Latest, "")
	check("up with nothing to do")
	down(t, pool, 1, "3 views, 2 storage")
	check("down to 1")
	upTo(t, pool, migrations.Latest, "2 storage, 3 views")
	check("up again")
	down(t, pool, 0, allDown)
	if left := schema(t, pool); left != "" {
		t.Errorf("down to 0 on data left:\n%s", left)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	// Times are right in whatever zone the sessions are.
	pool := connect(t, emptyDatabase(t), setting("TimeZone", "Australia/Lord_Howe"))
	status := func() string {
		t.Helper()
		all, err := migrations.Status(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, m := range all {
			text = append(text, fmt.Sprint(m.Version, " ", m.Name, " ", m.Applied))
			if m.Applied == m.AppliedAt.IsZero() {
				t.Errorf("%s: applied %v, at %v", m.Name, m.Applied, m.AppliedAt)
			}
		}
		return strings.Join(text, ", ")
	}
	if got := status(); got != "1 tables false, 2 storage false, 3 views false" {
		t.Errorf("at first: %s", got)
	}
	if one[bool](t, pool, `SELECT to_regclass($1) IS NOT NULL`, migrations.VersionTable) {
		t.Error("Status made the version table")
	}
	before := one[time.Time](t, pool, `SELECT clock_timestamp()`)
	upTo(t, pool, 2, "1 tables, 2 storage")
	after := one[time.Time](t, pool, `SELECT clock_timestamp()`)
	if got := status(); got != "1 tables true, 2 storage true, 3 views false" {
		t.Errorf("after two: %s", got)
	}
	all, err := migrations.Status(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all[:2] {
		if m.AppliedAt.Before(before) || m.AppliedAt.After(after) {
			t.Errorf("%s was applied at %v, want from %v to %v", m.Name, m.AppliedAt, before, after)
		}
	}
}

func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	pool := connect(t, emptyDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	upTo(t, pool, migrations.Latest, allUp)
	if _, err := migrations.Status(t.Context(), pool); err != nil {
		t.Error(err)
	}
	down(t, pool, 0, allDown)
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestUpFromManyAtOnce(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	const many = 8
	var ran [many][]migrations.Step
	var errs [many]error
	var all sync.WaitGroup
	for i := range many {
		pool := connect(t, address)
		all.Go(func() { ran[i], errs[i] = migrations.UpTo(t.Context(), pool, migrations.Latest) })
	}
	all.Wait()
	var steps []migrations.Step
	for i := range many {
		if errs[i] != nil {
			t.Errorf("the %d. of %d: %v", i+1, many, errs[i])
		}
		steps = append(steps, ran[i]...)
	}
	if names(steps) != allUp {
		t.Errorf("together they ran %q, want %q", names(steps), allUp)
	}
	checkMigratedOnce(t, connect(t, address))
}

// checkMigratedOnce checks that the database is as a migrated one is, and that
// each migration is on record once.
func checkMigratedOnce(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if got, want := schema(t, pool), schema(t, newPool(t)); got != want {
		t.Errorf("the schema is:\n%s\nwant:\n%s", got, want)
	}
	if got := one[string](t, pool, `SELECT string_agg(version_id::text, ' ' ORDER BY version_id) FROM `+migrations.VersionTable+` WHERE version_id > 0`); got != "1 2 3" {
		t.Errorf("on record are %q, want 1 2 3", got)
	}
}

// TestUpIsInterrupted: a cancelled Up leaves neither half a migration nor its
// lock behind.
func TestUpIsInterrupted(t *testing.T) {
	t.Parallel()
	pool := connect(t, emptyDatabase(t))
	// A table of that name which is not committed yet makes Up wait half-way.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `CREATE TABLE pglimit_gcra ()`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- migrations.Up(ctx, pool) }()
	awaitBlocked(t, pool)
	cancel()
	if err := next(t, ended, "Up's end"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Up returned %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := schema(t, pool); left != "" {
		t.Errorf("a cancelled Up left:\n%s", left)
	}
	upTo(t, pool, migrations.Latest, allUp)
}

func withSearchPath(t *testing.T, address, path string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", path)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestSchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	public := connect(t, address)
	exec(t, public, `CREATE SCHEMA limits; CREATE SCHEMA more`)
	limits := connect(t, withSearchPath(t, address, "limits"))
	more := connect(t, withSearchPath(t, address, "more,public"))

	upTo(t, limits, migrations.Latest, allUp)
	if left := schema(t, public); left != "" {
		t.Errorf("up in a schema of its own made in public:\n%s", left)
	}
	upTo(t, more, migrations.Latest, allUp) // of the two schemas, the first
	upTo(t, public, migrations.Latest, allUp)
	for name, pool := range map[string]*pgxpool.Pool{"limits": limits, "more": more} {
		called, failed := callStatements(t.Context(), pool, every)
		if len(failed) > 0 {
			t.Errorf("%s: of %q failed %v", name, called, failed)
		}
	}
	down(t, limits, 0, allDown)
	if schema(t, limits) != "" || schema(t, more) == "" || schema(t, public) == "" {
		t.Error("down in one schema did not keep to that schema")
	}
}
