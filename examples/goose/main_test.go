package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
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

// one returns the single value of a query.
func one[T any](t *testing.T, url, sql string) (v T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
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
	orders = "order placed, 2 left this hour\norder placed, 1 left this hour\norder placed, 0 left this hour\norder denied\n"
	denied = "order denied\norder denied\norder denied\norder denied\n"
	// relations lists the relations in the database, except goose's table.
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
	made := one[string](t, url, relations)
	if !strings.Contains(made, "pglimit_fixed_window_now") {
		t.Errorf("the limiter's view is not there: %s", made)
	}
	want("the second start", call(t, url, folder), denied)
	if n := one[int](t, url, `SELECT count(*) FROM orders`); n != 3 {
		t.Errorf("%d orders stand, want 3", n)
	}
	want("down", call(t, url, folder, "down"), own(folder, "down"))
	want("after down there is", one[string](t, url, relations), "")
	want("down with nothing to undo", call(t, url, folder, "down"), "")
	want("up after down", call(t, url, folder), own(folder, "up")+orders)
	want("up after down made", one[string](t, url, relations), made)

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), orders) {
		t.Errorf("README.md does not show what the program prints:\n%s", orders)
	}
}

// TestManyStartAtOnce: one process migrates and the others wait. Together they place no
// more orders than one would.
func TestManyStartAtOnce(t *testing.T) {
	t.Parallel()
	url, folder := testdb.Empty.New(t), withExported(t)
	var outs [4]bytes.Buffer
	var errs [4]error
	var all sync.WaitGroup
	for i := range outs {
		all.Go(func() { errs[i] = run(t.Context(), &outs[i], url, folder, nil) })
	}
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for i := range outs {
		out.Write(outs[i].Bytes())
	}
	if up, want := strings.Count(out.String(), "up "), strings.Count(own(folder, "up"), "up "); up != want {
		t.Errorf("%d migrations were run, want %d:\n%s", up, want, out.String())
	}
	if placed, stand := strings.Count(out.String(), "placed"), one[int](t, url, `SELECT count(*) FROM orders`); placed != 3 || stand != 3 {
		t.Errorf("%d orders were placed and %d stand, want 3", placed, stand)
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), io.Discard, "", nil, nil); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("without DATABASE_URL: %v", err)
	}
	if err := run(t.Context(), io.Discard, testdb.Empty.New(t), nil, []string{"sideways"}); err == nil || !strings.Contains(err.Error(), "sideways") {
		t.Errorf("with an argument that does not exist: %v", err)
	}
}
