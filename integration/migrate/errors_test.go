package migrate

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

// wants expects an error with all parts.
func wants(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, p := range append(parts, "pglimit: ") {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error lacks %q: %v", p, err)
		}
	}
}

// TestMigrateErrorsSayWhatToDo: what is in the way of a migration is named, with the next step.
func TestMigrateErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	t.Run("schema missing", func(t *testing.T) {
		t.Parallel()
		pool := testworld.Connect(t, testworld.WithSearchPath(t, testworld.EmptyDatabase(t), "nowhere"))
		wants(t, sets.Tables.Up(t.Context(), pool), "CREATE SCHEMA")
		if all, err := sets.Tables.Status(t.Context(), testworld.DB(t, pool)); err != nil || slices.ContainsFunc(all, func(m migrate.Migration) bool { return m.Applied }) {
			t.Errorf("status: %v, %v", all, err)
		}
	})
	t.Run("tables made by something else", func(t *testing.T) {
		t.Parallel()
		pool := testworld.Connect(t, testworld.EmptyDatabase(t))
		testworld.Exec(t, pool, `CREATE TABLE pglimit_token_bucket ()`)
		wants(t, sets.Tables.Up(t.Context(), pool), "pglimit_token_bucket", "already exists", "migrate in that way again")
		testworld.Exec(t, pool, `DROP TABLE pglimit_token_bucket`)
		testworld.UpTo(t, pool, migrate.Latest, testworld.AllUp) // the failed one left nothing behind
	})
	t.Run("something depends on a view", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		testworld.Exec(t, pool, `CREATE VIEW mine AS SELECT * FROM pglimit_token_bucket_now`)
		steps, err := sets.Tables.Down(t.Context(), pool, 0)
		wants(t, err, "pglimit_token_bucket_now", "drop that first")
		if testworld.MigrationNames(steps) != testworld.Below(3) {
			t.Errorf("undone were %q", testworld.MigrationNames(steps))
		}
	})
	t.Run("something depends on a table", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		testworld.Exec(t, pool, `CREATE VIEW mine AS SELECT * FROM pglimit_token_bucket`)
		steps, err := sets.Tables.Down(t.Context(), pool, 0)
		wants(t, err, "pglimit_token_bucket", "drop that first")
		if testworld.MigrationNames(steps) != testworld.Below(1) {
			t.Errorf("undone were %q", testworld.MigrationNames(steps))
		}
	})
	t.Run("a column of another type", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		testworld.Exec(t, pool, `ALTER TABLE pglimit_program ALTER pid TYPE text; DROP VIEW pglimit_keys; DELETE FROM pglimit_goose_db_version WHERE version_id >= 8`)
		wants(t, sets.Tables.Up(t.Context(), pool), "nothing was changed", "pglimit_program without pid bigint NOT NULL", "DROP TABLE pglimit_program CASCADE")
		if testworld.Value[bool](t, pool, `SELECT to_regclass('pglimit_keys') IS NOT NULL`) {
			t.Error("half of it was made again")
		}
		testworld.Exec(t, pool, `DROP TABLE pglimit_program CASCADE`)
		testworld.UpTo(t, pool, migrate.Latest, "7 keys, 10 attempts, 11 key_counts, 12 slots, 13 events, 14 balances, 15 usage, 16 ledger, 8 programs, 9 gcra")
		testworld.CheckMigratedOnce(t, pool)
	})
	t.Run("rows in the way of a constraint", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		testworld.Exec(t, pool, `ALTER TABLE pglimit_lease DROP CONSTRAINT pglimit_lease_pkey; INSERT INTO pglimit_lease SELECT 1, 'a', 'b' FROM generate_series(1, 2)`)
		wants(t, sets.Tables.Up(t.Context(), pool), "pglimit_lease without CONSTRAINT pglimit_lease_pkey", "could not create unique index", "correct or delete them")
	})
	t.Run("a type of the functions", func(t *testing.T) {
		t.Parallel()
		pool := testworld.FunctionsPool(t)
		testworld.Exec(t, pool, `ALTER TYPE pglimit._policy DROP ATTRIBUTE ruled`)
		wants(t, sets.Functions.Up(t.Context(), pool), "nothing was changed", "type pglimit._policy changed", "down --to 0 --functions")
	})
}

// TestMigrateErrorsOfOthers: a lock, a later release, a replica or a missing right is named, with the
// next step.
func TestMigrateErrorsOfOthers(t *testing.T) {
	t.Parallel()
	t.Run("a table is locked", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		testworld.Exec(t, pool, `DROP TRIGGER pglimit_policy_begin ON pglimit_policy`)
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		must.OK(tx.Exec(t.Context(), `LOCK TABLE pglimit_policy IN ROW EXCLUSIVE MODE`))(t)
		ended := make(chan error, 1)
		go func() { ended <- sets.Tables.Up(t.Context(), pool) }()
		testworld.AwaitBlocked(t, pool)
		testworld.Exec(t, pool, `BEGIN; SET LOCAL lock_timeout = '30s'; UPDATE pglimit_policy SET note = '' WHERE false; COMMIT`) // others get their turn
		must.Succeed(t, tx.Rollback(t.Context()))
		must.Succeed(t, testworld.Receive(t, ended, "Up's end"))
		testworld.CheckMigratedOnce(t, pool)
	})
	t.Run("a later release's tables", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		testworld.Exec(t, pool, `DROP VIEW pglimit_keys`) // as if it made another one
		testworld.Exec(t, pool, `INSERT INTO `+sets.Tables.VersionTable()+` (version_id, is_applied) VALUES (99, true)`)
		testworld.UpTo(t, pool, migrate.Latest, "") // an older process starts next to newer ones
		_, err := sets.Tables.Down(t.Context(), pool, migrate.Previous)
		last, _, _ := strings.Cut(testworld.AllDown, " ")
		wants(t, err, "does not know", "last known: "+last)
	})
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		pool := testworld.Connect(t, testworld.EmptyDatabase(t), testworld.Setting("default_transaction_read_only", "on"))
		wants(t, sets.Tables.Up(t.Context(), pool), "connect to the primary")
	})
	t.Run("no right", func(t *testing.T) {
		t.Parallel()
		address := testworld.EmptyDatabase(t)
		testworld.Exec(t, testworld.Connect(t, address), `REVOKE CREATE ON SCHEMA public FROM public`)
		pool := testworld.Connect(t, testworld.RuntimeRole(t, address))
		wants(t, sets.Tables.Up(t.Context(), pool), "GRANT CREATE")
	})
	t.Run("no right to make a view again", func(t *testing.T) {
		t.Parallel()
		address := testworld.NewDatabase(t)
		owner, role := testworld.Connect(t, address), testworld.RuntimeRole(t, address)
		must.OK(grants.Apply(t.Context(), owner, grants.Roles{Operators: []string{testworld.RoleOf(t, role)}}))(t)
		pool := testworld.Connect(t, role)
		testworld.UpTo(t, pool, migrate.Latest, "")
		testworld.Exec(t, owner, `REVOKE CREATE ON SCHEMA public FROM public; DROP VIEW pglimit_keys`)
		wants(t, sets.Tables.Up(t.Context(), pool), "pglimit_keys missing", "migrate as the owner")
	})
}
