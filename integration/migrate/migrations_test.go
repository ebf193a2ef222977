package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

// TestMigrateUpAndDown: with one connection, all migrations go up, down and up again, in
// steps of any size. Rows that are there stay, and nothing is left at the end.
func TestMigrateUpAndDown(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t), testworld.OneConnection)
	testworld.StepsDown(t, pool, migrate.Previous, "") // nothing to undo
	testworld.UpTo(t, pool, 1, "1 tables")
	tables := testworld.LimitTables(t, pool)
	called, failed := testworld.CallStatements(t.Context(), pool, "Take")
	if delete(failed, "BalanceTake"); len(failed) > 0 || len(called) < len(tables) { // a later one makes its table
		t.Fatalf("called %q: %v", called, failed)
	}
	first, data := testworld.Schema(t, pool), testworld.Contents(t, pool)
	if strings.Contains(data, "no rows") {
		t.Fatalf("a table is empty:\n%s", data)
	}
	check := func(after, schema string) {
		t.Helper()
		if got := testworld.Contents(t, pool); got != data {
			t.Errorf("after %s the tables hold:\n%s\nwant:\n%s", after, got, data)
		}
		if got := testworld.Schema(t, pool); got != schema {
			t.Errorf("after %s there is:\n%s\nwant:\n%s", after, got, schema)
		}
	}
	testworld.UpTo(t, pool, migrate.Latest, testworld.Above(1))
	whole := testworld.Schema(t, pool)
	check("up", whole)
	for _, table := range tables {
		if n := testworld.Value[int](t, pool, `SELECT count(*) FROM `+table+`_now WHERE level >= 0 AND updated_at <= clock_timestamp()`); n != 1 {
			t.Errorf("the view of %s shows %d rows, want 1", table, n)
		}
	}
	testworld.UpTo(t, pool, migrate.Latest, "")
	testworld.StepsDown(t, pool, 1, testworld.Below(1))
	check("down to 1", first)
	testworld.UpTo(t, pool, migrate.Latest, testworld.Above(1))
	check("up again", whole)
	last := testworld.Migrations(0)[len(testworld.Migrations(0))-1]
	testworld.StepsDown(t, pool, migrate.Previous, last)
	testworld.UpTo(t, pool, migrate.Latest, last)
	testworld.StepsDown(t, pool, 0, testworld.AllDown)
	if left := testworld.Schema(t, pool); left != "" {
		t.Errorf("down to 0 left:\n%s", left)
	}
	testworld.StepsDown(t, pool, 0, "")
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestMigrateStatus(t *testing.T) {
	t.Parallel()
	// Times are right in any time zone of the sessions.
	pool := testworld.Connect(t, testworld.EmptyDatabase(t), testworld.Setting("TimeZone", "Australia/Lord_Howe"))
	status := func() string {
		t.Helper()
		all := must.OK(sets.Tables.Status(t.Context(), testworld.DB(t, pool)))(t)
		var text []string
		for _, m := range all {
			text = append(text, fmt.Sprint(m.Version, " ", m.Name, " ", m.Applied))
			if m.Applied == m.AppliedAt.IsZero() {
				t.Errorf("%s: applied %v, at %v", m.Name, m.Applied, m.AppliedAt)
			}
		}
		return strings.Join(text, ", ")
	}
	pending := strings.Join(testworld.Migrations(2), " false, ") + " false"
	if got := status(); got != "1 tables false, 2 storage false, "+pending {
		t.Errorf("at first: %s", got)
	}
	if testworld.Value[bool](t, pool, `SELECT to_regclass($1) IS NOT NULL`, sets.Tables.VersionTable()) {
		t.Error("Status made the version table")
	}
	before := testworld.Value[time.Time](t, pool, `SELECT clock_timestamp()`)
	testworld.UpTo(t, pool, 2, "1 tables, 2 storage")
	after := testworld.Value[time.Time](t, pool, `SELECT clock_timestamp()`)
	if got := status(); got != "1 tables true, 2 storage true, "+pending {
		t.Errorf("after two: %s", got)
	}
	all := must.OK(sets.Tables.Status(t.Context(), testworld.DB(t, pool)))(t)
	for _, m := range all[:2] {
		if m.AppliedAt.Before(before) || m.AppliedAt.After(after) {
			t.Errorf("%s was applied at %v, want from %v to %v", m.Name, m.AppliedAt, before, after)
		}
	}
}

func TestMigrateUpFromManyAtOnce(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	const many = 8
	var ran [many][]migrate.Step
	var errs [many]error
	var all sync.WaitGroup
	for i := range many {
		pool := testworld.Connect(t, address)
		all.Go(func() { ran[i], errs[i] = sets.Tables.UpTo(t.Context(), pool, migrate.Latest) })
	}
	all.Wait()
	var steps []migrate.Step
	for i := range many {
		if errs[i] != nil {
			t.Errorf("the %d. of %d: %v", i+1, many, errs[i])
		}
		steps = append(steps, ran[i]...)
	}
	if testworld.MigrationNames(steps) != testworld.AllUp {
		t.Errorf("together they ran %q, want %q", testworld.MigrationNames(steps), testworld.AllUp)
	}
	testworld.CheckMigratedOnce(t, testworld.Connect(t, address))
}

// TestMigrateUpInterrupted: a cancelled Up leaves neither half a migration nor its lock.
func TestMigrateUpInterrupted(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	// An uncommitted table with the name of the next one makes Up wait half-way.
	tx := must.OK(pool.Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	must.OK(tx.Exec(t.Context(), `CREATE TABLE pglimit_token_bucket ()`))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sets.Tables.Up(ctx, pool) }()
	testworld.AwaitBlocked(t, pool)
	cancel()
	if err := testworld.Receive(t, ended, "Up's end"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Up returned %v", err)
	}
	must.Succeed(t, tx.Rollback(t.Context()))
	if left := testworld.Schema(t, pool); left != "" {
		t.Errorf("a cancelled Up left:\n%s", left)
	}
	testworld.UpTo(t, pool, migrate.Latest, testworld.AllUp)
}

func TestMigrateSchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	public := testworld.Connect(t, address)
	testworld.Exec(t, public, `CREATE SCHEMA limits; CREATE SCHEMA more`)
	limits := testworld.Connect(t, testworld.WithSearchPath(t, address, "limits"))
	more := testworld.Connect(t, testworld.WithSearchPath(t, address, "more,public"))

	testworld.UpTo(t, limits, migrate.Latest, testworld.AllUp)
	if left := testworld.Schema(t, public); left != "" {
		t.Errorf("up in a separate schema made in public:\n%s", left)
	}
	testworld.UpTo(t, more, migrate.Latest, testworld.AllUp) // of the two schemas, the first
	testworld.UpTo(t, public, migrate.Latest, testworld.AllUp)
	for name, pool := range map[string]*pgxpool.Pool{"limits": limits, "more": more} {
		called, failed := testworld.CallStatements(t.Context(), pool, "")
		if len(failed) > 0 {
			t.Errorf("%s: of %q failed %v", name, called, failed)
		}
	}
	testworld.StepsDown(t, limits, 0, testworld.AllDown)
	if testworld.Schema(t, limits) != "" || testworld.Schema(t, more) == "" || testworld.Schema(t, public) == "" {
		t.Error("down in one schema did not keep to that schema")
	}
}
