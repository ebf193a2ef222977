package main

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// withExported returns the application's migrations and pglimit's.
func withExported(t *testing.T) fs.FS {
	t.Helper()
	dir := t.TempDir()
	err := os.CopyFS(dir, os.DirFS("migrations"))
	if err == nil {
		_, err = migrations.Export(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return os.DirFS(dir)
}

// call runs the program and returns what it printed.
func call(t *testing.T, url string, folder fs.FS, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), &out, url, folder, args); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out.String()
}

// made lists the relations in the database, except goose's table.
func made(t *testing.T, url string) (names string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), relations).Scan(&names); err != nil {
		t.Fatal(err)
	}
	return names
}

// own lists the migrations in order, as the program prints them.
func own(folder fs.FS, direction string) string {
	names, _ := fs.Glob(folder, "*.sql") // sorted; the pattern is valid
	if direction == "down" {
		slices.Reverse(names)
	}
	var b strings.Builder
	for _, n := range names {
		b.WriteString(direction + " " + n + "\n")
	}
	return b.String()
}

const (
	orders    = "order placed, 2 left this hour\norder placed, 1 left this hour\norder placed, 0 left this hour\norder denied\n"
	denied    = "order denied\norder denied\norder denied\norder denied\n"
	relations = `SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose_db_version%'`
)

func TestUpAndDown(t *testing.T) {
	t.Parallel()
	url, folder := testdb.Empty.New(t), withExported(t)
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
		}
	}
	want("the first start", call(t, url, folder), own(folder, "up")+orders)
	first := made(t, url)
	if !strings.Contains(first, "pglimit_fixed_window_now") {
		t.Errorf("the limiter's view is not there: %s", first)
	}
	want("the second start", call(t, url, folder), denied)
	want("down", call(t, url, folder, "down"), own(folder, "down"))
	want("after down there is", made(t, url), "")
	want("down with nothing to undo", call(t, url, folder, "down"), "")
	want("up after down", call(t, url, folder), own(folder, "up")+orders)
	want("up after down made", made(t, url), first)

	if readme, err := os.ReadFile("README.md"); err != nil || !strings.Contains(string(readme), orders) {
		t.Errorf("README.md does not show what the program prints: %v", err)
	}
}
