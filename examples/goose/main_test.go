package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

var update = flag.Bool("update", false, "make the files in migrations/ what pglimit exports")

var empty *pglimittest.Template

func TestMain(m *testing.M) {
	flag.Parse()
	log.SetFlags(0)
	code, err := runTests(m)
	if err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	server, err := pglimittest.Start(ctx, log.Printf)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if empty, err = server.Template(ctx, "goose", func(context.Context, *pgxpool.Pool) error { return nil }); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// call runs the program and returns what it printed.
func call(t *testing.T, url string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), &out, url, args); err != nil {
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
func own(direction string) string {
	names, _ := fs.Glob(files, "migrations/*.sql") // sorted; the pattern is valid
	if direction == "down" {
		slices.Reverse(names)
	}
	var b strings.Builder
	for _, n := range names {
		b.WriteString(direction + " " + path.Base(n) + "\n")
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
	url := empty.New(t)
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
		}
	}
	first := call(t, url)
	want("the first start", first, own("up")+orders)
	made := one[string](t, url, relations)
	if !strings.Contains(made, "pglimit_fixed_window_now") {
		t.Errorf("the limiter's view is not there: %s", made)
	}
	want("the second start", call(t, url), denied)
	if n := one[int](t, url, `SELECT count(*) FROM orders`); n != 3 {
		t.Errorf("%d orders stand, want 3", n)
	}
	want("down", call(t, url, "down"), own("down"))
	want("after down there is", one[string](t, url, relations), "")
	want("down with nothing to undo", call(t, url, "down"), "")
	want("up after down", call(t, url), own("up")+orders)
	want("up after down made", one[string](t, url, relations), made)

	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{first, own("down")} {
		if !strings.Contains(string(readme), "```\n"+part+"```\n") {
			t.Errorf("README.md does not show what the program prints:\n%s", part)
		}
	}
}

// TestManyStartAtOnce: one process migrates and the others wait. Together they place no
// more orders than one would.
func TestManyStartAtOnce(t *testing.T) {
	t.Parallel()
	url := empty.New(t)
	var outs [4]bytes.Buffer
	var errs [4]error
	var all sync.WaitGroup
	for i := range outs {
		all.Go(func() { errs[i] = run(t.Context(), &outs[i], url, nil) })
	}
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for i := range outs {
		out.Write(outs[i].Bytes())
	}
	if up, want := strings.Count(out.String(), "up "), strings.Count(own("up"), "up "); up != want {
		t.Errorf("%d migrations were run, want %d:\n%s", up, want, out.String())
	}
	if placed, stand := strings.Count(out.String(), "placed"), one[int](t, url, `SELECT count(*) FROM orders`); placed != 3 || stand != 3 {
		t.Errorf("%d orders were placed and %d stand, want 3", placed, stand)
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), io.Discard, "", nil); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("without DATABASE_URL: %v", err)
	}
	if err := run(t.Context(), io.Discard, empty.New(t), []string{"sideways"}); err == nil || !strings.Contains(err.Error(), "sideways") {
		t.Errorf("with an argument that does not exist: %v", err)
	}
}

var exported = regexp.MustCompile(`^\d+_pglimit_(.*)$`)

// TestMigrationsAreWhatExportWrites: the files that came from pglimit equal those of this
// release, in its order, whatever their numbers.
func TestMigrationsAreWhatExportWrites(t *testing.T) {
	t.Parallel()
	today := t.TempDir()
	if _, err := migrations.Export(today); err != nil {
		t.Fatal(err)
	}
	want, names := read(t, today)
	if *update {
		bringUpToDate(t, want)
	}
	got, order := read(t, "migrations")
	if !slices.Equal(order, names) {
		t.Errorf("migrations/ has %q of pglimit, which exports %q", order, names)
	}
	for _, name := range names {
		if got[name] != want[name] {
			t.Errorf("migrations/*_pglimit_%s is not what pglimit exports", name)
		}
	}
	if t.Failed() {
		t.Error("make them so with go test -update, and README.md with them")
	}
}

// read returns the text of each migration in dir that came from pglimit, by its name
// without the number, and the names in order.
func read(t *testing.T, dir string) (texts map[string]string, names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	texts = map[string]string{}
	for _, e := range entries {
		if m := exported.FindStringSubmatch(e.Name()); m != nil {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			texts[m[1]] = string(text)
			names = append(names, m[1])
		}
	}
	return texts, names
}

// bringUpToDate rewrites changed migrations under their numbers, deletes removed ones and
// exports missing ones. Migrations change or are removed only before pglimit's first
// release.
func bringUpToDate(t *testing.T, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir("migrations")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		m := exported.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		file := filepath.Join("migrations", e.Name())
		if text, ok := want[m[1]]; ok {
			err = os.WriteFile(file, []byte(text), 0o644)
		} else {
			err = os.Remove(file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migrations.Export("migrations"); err != nil {
		t.Fatal(err)
	}
}
