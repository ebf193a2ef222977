package migrate

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/migrations"
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
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// appGoose is goose as an application uses it: its folder, the default version table.
func appGoose(t *testing.T, pool *pgxpool.Pool, dir string) *goose.Provider {
	t.Helper()
	var conn *sql.DB = stdlib.OpenDBFromPool(pool)
	p, err := goose.NewProvider(goose.DialectPostgres, conn, os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func gooseUp(t *testing.T, pool *pgxpool.Pool, dir string, want ...string) {
	t.Helper()
	results, err := appGoose(t, pool, dir).Up(t.Context())
	checkResults(t, results, err, want)
}

func gooseDownTo(t *testing.T, pool *pgxpool.Pool, dir string, to int64, want ...string) {
	t.Helper()
	results, err := appGoose(t, pool, dir).DownTo(t.Context(), to)
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
	files, err := migrations.Export(dir)
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
	pool := bed.Connect(t, bed.EmptyDatabase(t))
	dir := appFolder(t)
	gooseUp(t, pool, dir, "00001_users.sql", "00002_orders.sql")
	ours := bed.Exported(3)
	export(t, dir, ours...)
	export(t, dir)
	invoices := fmt.Sprintf("%05d_invoices.sql", 3+len(ours))
	writeFile(t, filepath.Join(dir, invoices), "-- +goose Up\nCREATE TABLE invoices (id bigint);\n-- +goose Down\nDROP TABLE invoices;\n")
	export(t, dir)

	gooseUp(t, pool, dir, append(ours, invoices)...)
	want := bed.Schema(t, bed.NewPool(t))
	if got := bed.Schema(t, pool); got != want {
		t.Errorf("the application's goose made:\n%s\nwant:\n%s", got, want)
	}
	if called, failed := bed.CallStatements(t.Context(), pool, bed.EveryStatement); len(failed) > 0 {
		t.Errorf("of %q failed %v", called, failed)
	}
	if bed.Value[bool](t, pool, `SELECT to_regclass($1) IS NOT NULL`, migrations.VersionTable) {
		t.Errorf("%s is there, though the application's table keeps the record", migrations.VersionTable)
	}
	// A program that also calls Up gets an error that says so, and nothing is broken.
	if err := migrations.Up(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "migrate in that way again") {
		t.Errorf("Up besides exported migrations: %v", err)
	}
	if got := bed.Schema(t, pool); got != want {
		t.Errorf("Up besides exported migrations left:\n%s\nwant:\n%s", got, want)
	}
	slices.Reverse(ours)
	gooseDownTo(t, pool, dir, 0, slices.Concat([]string{invoices}, ours, []string{"00002_orders.sql", "00001_users.sql"})...)
	if left := bed.Schema(t, pool); left != "" {
		t.Errorf("goose down left:\n%s", left)
	}
}

func TestMigrateExportWhereVersionsAreTimes(t *testing.T) {
	t.Parallel()
	pool := bed.Connect(t, bed.EmptyDatabase(t))
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "20240102030405_users.sql"), appMigrations["00001_users.sql"])
	files, err := migrations.Export(dir)
	if err != nil || len(files) != len(bed.Migrations(0)) {
		t.Fatalf("exported %q, error %v", files, err)
	}
	if _, err := appGoose(t, pool, dir).Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := bed.Schema(t, pool), bed.Schema(t, bed.NewPool(t)); got != want {
		t.Errorf("goose made:\n%s\nwant:\n%s", got, want)
	}
}

// TestMigrateBesideAnApplicationsGoose: two goose version tables in one database do not
// interfere.
func TestMigrateBesideAnApplicationsGoose(t *testing.T) {
	t.Parallel()
	pool := bed.Connect(t, bed.EmptyDatabase(t))
	dir := appFolder(t)
	gooseUp(t, pool, dir, "00001_users.sql", "00002_orders.sql")
	bed.UpTo(t, pool, migrations.Latest, bed.AllUp)
	gooseDownTo(t, pool, dir, 0, "00002_orders.sql", "00001_users.sql")
	bed.CheckMigratedOnce(t, pool)
	gooseUp(t, pool, dir, "00001_users.sql", "00002_orders.sql")
	bed.StepsDown(t, pool, 0, bed.AllDown)
	if !bed.Value[bool](t, pool, `SELECT to_regclass('users') IS NOT NULL`) {
		t.Error("down took the application's table away")
	}
}

// TestMigrateFSInACallersProvider is the fourth way: goose over FS.
func TestMigrateFSInACallersProvider(t *testing.T) {
	t.Parallel()
	pool := bed.Connect(t, bed.EmptyDatabase(t))
	p, err := goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), migrations.FS, goose.WithTableName("limits_version"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := bed.Schema(t, pool), bed.Schema(t, bed.NewPool(t)); got != want {
		t.Errorf("goose made:\n%s\nwant:\n%s", got, want)
	}
}

func TestMigratePrintedSQL(t *testing.T) {
	t.Parallel()
	pool := bed.Connect(t, bed.EmptyDatabase(t))
	run := func(down bool) {
		t.Helper()
		var text strings.Builder
		if err := migrations.Print(&text, down); err != nil {
			t.Fatal(err)
		}
		bed.Exec(t, pool, "BEGIN;\n"+text.String()+"COMMIT")
	}
	run(false)
	if got, want := bed.Schema(t, pool), bed.Schema(t, bed.NewPool(t)); got != want {
		t.Errorf("the printed SQL made:\n%s\nwant:\n%s", got, want)
	}
	run(true)
	if left := bed.Schema(t, pool); left != "" {
		t.Errorf("the printed SQL for down left:\n%s", left)
	}
}
