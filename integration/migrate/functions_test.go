package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	public "github.com/pglimit/pglimit/migrations"
)

// loginCall is a call that needs the functions and the tables.
const loginCall = `SELECT remaining FROM pglimit.token_bucket('login', 'alice', limit_units => 5, period_s => 3600)`

func TestMigrateFunctionsUpAndDown(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	tables := testworld.Schema(t, pool)
	steps, err := sets.Functions.Down(ctx, pool, 0)
	if err != nil || len(steps) > 0 {
		t.Errorf("down at first: %s, %v", testworld.MigrationNames(steps), err)
	}
	for range 2 {
		must.Succeed(t, sets.Functions.Up(ctx, pool))
	}
	made := testworld.OwnSchema(t, pool)
	if got := testworld.Value[float64](t, pool, loginCall); got != 4 {
		t.Errorf("%v remaining, want 4", got)
	}
	all, err := sets.Functions.Status(ctx, testworld.DB(t, pool))
	if err != nil || len(all) == 0 || !all[len(all)-1].Applied {
		t.Errorf("status: %+v, %v", all, err)
	}
	if tables != testworld.Schema(t, pool) {
		t.Error("the functions' migration changed the tables")
	}
	must.OK(sets.Functions.Down(ctx, pool, 0))(t)
	if left := testworld.OwnSchema(t, pool); left != "" {
		t.Errorf("down left:\n%s", left)
	}
	if level := testworld.Value[float64](t, pool, `SELECT level FROM pglimit_token_bucket`); level != 1 {
		t.Errorf("down changed what is counted: %v", level)
	}
	must.Succeed(t, sets.Functions.Up(ctx, pool))
	if again := testworld.OwnSchema(t, pool); again != made {
		t.Errorf("up after down made:\n%s\nwant:\n%s", again, made)
	}
}

// TestMigrateFunctionsAreReplaced: a migration can replace functions of another text, as
// the next release does, and granted rights stay.
func TestMigrateFunctionsAreReplaced(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	want := testworld.OwnSchema(t, pool)
	testworld.Exec(t, pool, `CREATE OR REPLACE FUNCTION pglimit.reset_with(algorithm text, name text, key text) RETURNS void LANGUAGE sql AS ''`)
	testworld.Exec(t, pool, `REVOKE EXECUTE ON FUNCTION pglimit.reset_with FROM public`)
	if testworld.OwnSchema(t, pool) == want {
		t.Fatal("the change is not seen")
	}
	var text strings.Builder
	must.Succeed(t, sets.Functions.Print(&text, false))
	testworld.Exec(t, pool, text.String())
	if got := testworld.OwnSchema(t, pool); got != want {
		t.Errorf("run again it made:\n%s\nwant:\n%s", got, want)
	}
	if testworld.Value[bool](t, pool, `SELECT proacl IS NULL FROM pg_proc WHERE oid = 'pglimit.reset_with'::regproc`) {
		t.Error("the rights on a function were lost")
	}
}

// TestMigrateFunctionsFindTheirTables: a database has one set of functions, bound to the
// tables of one schema, whatever the caller's search_path.
func TestMigrateFunctionsFindTheirTables(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := testworld.EmptyDatabase(t)
	public := testworld.Connect(t, address)
	testworld.Exec(t, public, `CREATE SCHEMA "Odd-One"; CREATE SCHEMA decoy`)
	odd := testworld.Connect(t, testworld.WithSearchPath(t, address, `"Odd-One"`))
	err := sets.Functions.Up(ctx, odd)
	if err == nil || !strings.Contains(err.Error(), "create the tables first") {
		t.Errorf("without tables: %v", err)
	}
	if left := testworld.OwnSchema(t, odd); left != "" {
		t.Errorf("without tables up left:\n%s", left)
	}
	testworld.UpTo(t, odd, 3, "1 tables, 2 storage, 3 views")
	err = sets.Functions.Up(ctx, odd)
	if err == nil || !strings.Contains(err.Error(), "has no table pglimit_override") || !strings.Contains(err.Error(), "pglimit migrate up") {
		t.Errorf("with the tables of an earlier release: %v", err)
	}
	testworld.UpTo(t, odd, migrate.Latest, testworld.Above(3))
	must.Succeed(t, sets.Functions.Up(ctx, odd))
	// Tables of the same name precede the right ones in each possible way.
	testworld.Exec(t, public, `CREATE TABLE public.pglimit_token_bucket (); CREATE TABLE decoy.pglimit_token_bucket ();
		CREATE FUNCTION decoy.floor(float8) RETURNS float8 LANGUAGE sql AS 'SELECT 0::float8'`)
	for i, path := range []string{"decoy, public", `""`, "pg_temp, decoy, pg_catalog", `decoy, pglimit, "Odd-One"`} {
		pool := testworld.Connect(t, address, testworld.Setting("search_path", path), func(c *pgxpool.Config) { c.MaxConns = 1 })
		testworld.Exec(t, pool, `CREATE TEMP TABLE pglimit_token_bucket ()`)
		if got := testworld.Value[float64](t, pool, loginCall); got > float64(4-i)+0.1 || got < float64(4-i) {
			t.Errorf("search_path %s: %v remaining, want %d", path, got, 4-i)
		}
		if path == "decoy, public" && testworld.Value[string](t, pool, `SHOW search_path`) != path {
			t.Error("the caller's search_path changed")
		}
	}
	testworld.Exec(t, public, `DROP TABLE public.pglimit_token_bucket`)
	testworld.UpTo(t, public, migrate.Latest, testworld.AllUp)
	if err := sets.Functions.Up(ctx, public); err == nil || !strings.Contains(err.Error(), "undo them there first") {
		t.Errorf("a second set over other tables: %v", err)
	}
	if _, err := sets.Functions.Down(ctx, public, 0); err != nil || testworld.OwnSchema(t, public) == "" {
		t.Errorf("down where they are not on record: %v", err)
	}
}

// TestMigrateFunctionsBesideTheTables: schema pglimit may contain the tables.
func TestMigrateFunctionsBesideTheTables(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	testworld.Exec(t, testworld.Connect(t, address), `CREATE SCHEMA pglimit`)
	pool := testworld.Connect(t, testworld.WithSearchPath(t, address, "pglimit"))
	testworld.UpTo(t, pool, migrate.Latest, testworld.AllUp)
	tables := testworld.Schema(t, pool)
	must.Succeed(t, sets.Functions.Up(t.Context(), pool))
	if got := testworld.Value[float64](t, pool, loginCall); got != 4 {
		t.Errorf("%v remaining, want 4", got)
	}
	must.OK(sets.Functions.Down(t.Context(), pool, 0))(t)
	if got := testworld.Schema(t, pool); got != tables {
		t.Errorf("down left:\n%s\nwant:\n%s", got, tables)
	}
}

// TestMigrateFunctionsByOtherTools: printed, and in an application's goose folder.
func TestMigrateFunctionsByOtherTools(t *testing.T) {
	t.Parallel()
	want := testworld.OwnSchema(t, testworld.FunctionsPool(t))
	t.Run("print", func(t *testing.T) {
		t.Parallel()
		pool := testworld.NewPool(t)
		for _, down := range []bool{false, true} {
			var text strings.Builder
			must.Succeed(t, sets.Functions.Print(&text, down))
			testworld.Exec(t, pool, "BEGIN;\n"+text.String()+"COMMIT")
			if got := testworld.OwnSchema(t, pool); got != map[bool]string{false: want}[down] {
				t.Errorf("printed, down %v, made:\n%s", down, got)
			}
		}
	})
	t.Run("export", func(t *testing.T) {
		t.Parallel()
		pool := testworld.Connect(t, testworld.EmptyDatabase(t))
		dir := appFolder(t)
		ours := testworld.Exported(3)
		export(t, dir, ours...)
		names := []string{fmt.Sprintf("%05d_pglimit_functions.sql", 3+len(ours)), fmt.Sprintf("%05d_pglimit_functions_callable.sql", 4+len(ours))}
		files, err := sets.Functions.Export(dir)
		if err != nil || len(files) != 2 || filepath.Base(files[0]) != names[0] || filepath.Base(files[1]) != names[1] {
			t.Fatalf("exported %q, %v", files, err)
		}
		if again, err := sets.Functions.Export(dir); err != nil || len(again) > 0 {
			t.Errorf("the second export: %q, %v", again, err)
		}
		must.OK(provider(t, pool, os.DirFS(dir)).Up(t.Context()))(t)
		if got := testworld.OwnSchema(t, pool); got != want {
			t.Errorf("goose made:\n%s\nwant:\n%s", got, want)
		}
		must.OK(provider(t, pool, os.DirFS(dir)).DownTo(t.Context(), 0))(t)
		if left := testworld.OwnSchema(t, pool); left != "" {
			t.Errorf("goose down left:\n%s", left)
		}
	})
}

// TestMigratePublic: what package migrations gives users runs these sets, each by itself.
func TestMigratePublic(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	database := testworld.DB(t, pool)
	must.Succeed(t, public.UpSQL(t.Context(), database))
	must.Succeed(t, public.Functions.UpSQL(t.Context(), database))
	if got := testworld.Value[float64](t, pool, loginCall); got != 4 {
		t.Errorf("%v remaining, want 4", got)
	}
	for _, c := range []struct {
		set    *migrate.Set
		fs     fs.FS
		export func(dir string) ([]string, error)
	}{
		{sets.Tables, public.FS(), public.Export},
		{sets.Functions, public.Functions.FS(), public.Functions.Export},
	} {
		want, err := fs.Glob(c.set.FS(), "*.sql")
		got, err2 := fs.Glob(c.fs, "*.sql")
		files, err3 := c.export(t.TempDir())
		if err := errors.Join(err, err2, err3); err != nil || len(want) == 0 || !slices.Equal(got, want) || len(files) != len(want) {
			t.Errorf("%q in the file system, %q exported, %v; want %q", got, files, err, want)
		}
	}
}
