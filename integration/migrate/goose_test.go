package migrate

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

// appMigrations are the application's migrations, in goose's format.
var appMigrations = map[string]string{
	"00001_users.sql":  "-- +goose Up\nCREATE TABLE users (id bigint);\n-- +goose Down\nDROP TABLE users;\n",
	"00002_orders.sql": "-- +goose Up\nCREATE TABLE orders (id bigint);\n-- +goose Down\nDROP TABLE orders;\n",
}

// appFolder is the application's goose folder.
func appFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range appMigrations {
		writeFile(t, filepath.Join(dir, name), text)
	}
	return dir
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

// provider is goose over an application's files, with the default version table.
func provider(t *testing.T, pool *pgxpool.Pool, files fs.FS, options ...goose.ProviderOption) *goose.Provider {
	t.Helper()
	p := must.OK(goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), files, options...))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

func gooseUp(t *testing.T, pool *pgxpool.Pool, dir string, want ...string) {
	t.Helper()
	results, err := provider(t, pool, os.DirFS(dir)).Up(t.Context())
	checkResults(t, results, err, want)
}

func gooseDownTo(t *testing.T, pool *pgxpool.Pool, dir string, to int64, want ...string) {
	t.Helper()
	results, err := provider(t, pool, os.DirFS(dir)).DownTo(t.Context(), to)
	checkResults(t, results, err, want)
}

func checkResults(t *testing.T, results []*goose.MigrationResult, err error, want []string) {
	t.Helper()
	var got []string
	for _, r := range results {
		got = append(got, filepath.Base(r.Source.Path))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("goose ran %q, error %v; want %q", got, err, want)
	}
}

func export(t *testing.T, dir string, want ...string) {
	t.Helper()
	files, err := sets.Tables.Export(dir)
	var got []string
	for _, f := range files {
		got = append(got, filepath.Base(f))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("exported %q, error %v; want %q", got, err, want)
	}
}

func TestMigrateInAnApplicationsGooseFolder(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	dir := appFolder(t)
	gooseUp(t, pool, dir, "00001_users.sql", "00002_orders.sql")
	ours := testworld.Exported(3)
	export(t, dir, ours...)
	export(t, dir)
	invoices := fmt.Sprintf("%05d_invoices.sql", 3+len(ours))
	writeFile(t, filepath.Join(dir, invoices), "-- +goose Up\nCREATE TABLE invoices (id bigint);\n-- +goose Down\nDROP TABLE invoices;\n")
	export(t, dir)

	gooseUp(t, pool, dir, append(ours, invoices)...)
	want := testworld.Schema(t, testworld.NewPool(t))
	if got := testworld.Schema(t, pool); got != want {
		t.Errorf("the application's goose made:\n%s\nwant:\n%s", got, want)
	}
	if called, failed := testworld.CallStatements(t.Context(), pool, ""); len(failed) > 0 {
		t.Errorf("of %q failed %v", called, failed)
	}
	if testworld.Value[bool](t, pool, `SELECT to_regclass($1) IS NOT NULL`, sets.Tables.VersionTable()) {
		t.Errorf("%s is there, though the application's table keeps the record", sets.Tables.VersionTable())
	}
	// A program that also calls Up gets an error that says so, and nothing is broken.
	if err := sets.Tables.Up(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "migrate in that way again") {
		t.Errorf("Up besides exported migrations: %v", err)
	}
	if got := testworld.Schema(t, pool); got != want {
		t.Errorf("Up besides exported migrations left:\n%s\nwant:\n%s", got, want)
	}
	slices.Reverse(ours)
	gooseDownTo(t, pool, dir, 0, slices.Concat([]string{invoices}, ours, []string{"00002_orders.sql", "00001_users.sql"})...)
	if left := testworld.Schema(t, pool); left != "" {
		t.Errorf("goose down left:\n%s", left)
	}
}

// TestMigrateBesideAnApplicationsGoose: two goose version tables in one database do not
// interfere.
func TestMigrateBesideAnApplicationsGoose(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	dir := appFolder(t)
	gooseUp(t, pool, dir, "00001_users.sql", "00002_orders.sql")
	testworld.UpTo(t, pool, migrate.Latest, testworld.AllUp)
	gooseDownTo(t, pool, dir, 0, "00002_orders.sql", "00001_users.sql")
	testworld.CheckMigratedOnce(t, pool)
	gooseUp(t, pool, dir, "00001_users.sql", "00002_orders.sql")
	testworld.StepsDown(t, pool, 0, testworld.AllDown)
	if !testworld.Value[bool](t, pool, `SELECT to_regclass('users') IS NOT NULL`) {
		t.Error("down took the application's table away")
	}
}

// TestMigrateByOtherTools: goose over FS, goose over exported files whose versions are times,
// and the printed SQL make what Up makes, and leave nothing when they undo it.
func TestMigrateByOtherTools(t *testing.T) {
	t.Parallel()
	want := testworld.Schema(t, testworld.NewPool(t))
	printed := func(t *testing.T, pool *pgxpool.Pool, down bool) {
		t.Helper()
		var text strings.Builder
		must.Succeed(t, sets.Tables.Print(&text, down))
		testworld.Exec(t, pool, "BEGIN;\n"+text.String()+"COMMIT")
	}
	by := func(t *testing.T, p *goose.Provider) (up, down func()) {
		return func() { must.OK(p.Up(t.Context()))(t) }, func() { must.OK(p.DownTo(t.Context(), 0))(t) }
	}
	for name, tool := range map[string]func(t *testing.T, pool *pgxpool.Pool) (up, down func()){
		"print": func(t *testing.T, pool *pgxpool.Pool) (up, down func()) {
			return func() { printed(t, pool, false) }, func() { printed(t, pool, true) }
		},
		"goose over FS": func(t *testing.T, pool *pgxpool.Pool) (up, down func()) {
			return by(t, provider(t, pool, sets.Tables.FS(), goose.WithTableName("limits_version")))
		},
		"goose over times": func(t *testing.T, pool *pgxpool.Pool) (up, down func()) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "20240102030405_users.sql"), appMigrations["00001_users.sql"])
			if files, err := sets.Tables.Export(dir); err != nil || len(files) != len(testworld.Migrations(0)) {
				t.Fatalf("exported %q, error %v", files, err)
			}
			return by(t, provider(t, pool, os.DirFS(dir)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testworld.Connect(t, testworld.EmptyDatabase(t))
			up, down := tool(t, pool)
			up()
			if got := testworld.Schema(t, pool); got != want {
				t.Errorf("up made:\n%s\nwant:\n%s", got, want)
			}
			down()
			if left := testworld.Schema(t, pool); left != "" {
				t.Errorf("down left:\n%s", left)
			}
		})
	}
}
