package migrate

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/pglimit/internal/must"
)

// The sets, of the files as they are.
var (
	tables    = Tables(os.DirFS("../../migrations"))
	functions = Functions(os.DirFS("../../migrations/functions"))
)

// TestSetNumbersAscend: each migration has a number of five digits and a name that no other
// has. A name makes a file out in an application's folder, where numbers differ.
func TestSetNumbersAscend(t *testing.T) {
	t.Parallel()
	names, before := map[string]bool{}, int64(0)
	for _, f := range tables.list() {
		if f.version <= before || names[f.name] || f.path != fmt.Sprintf("%05d_%s.sql", f.version, f.name) {
			t.Errorf("%s: version %d after %d, name %q", f.path, f.version, before, f.name)
		}
		names[f.name], before = true, f.version
	}
}

// TestSetGlobalGoMigrations checks that Up does not run Go migrations that an application
// registers with goose.
func TestSetGlobalGoMigrations(t *testing.T) {
	t.Parallel()
	goose.AddNamedMigrationContext("99999_app.go", func(context.Context, *sql.Tx) error { return nil }, nil)
	config := must.OK(pgx.ParseConfig("postgres://nobody@127.0.0.1:1/none"))(t)
	p, err := tables.provider(stdlib.OpenDB(*config)) // never connects
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var got []string
	for _, s := range p.ListSources() {
		got = append(got, s.Path)
	}
	var want []string
	for _, f := range tables.list() {
		want = append(want, f.path)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the provider runs %q, want %q", got, want)
	}
}

func TestSetNoSuchVersion(t *testing.T) {
	t.Parallel()
	for _, to := range []int64{-2, -1, 0, 99} {
		if _, err := tables.UpTo(t.Context(), nil, to); !errors.Is(err, ErrNoSuchVersion) {
			t.Errorf("up to %d: %v", to, err)
		}
	}
	for _, to := range []int64{-2, 99, Latest} {
		if _, err := tables.Down(t.Context(), nil, to); !errors.Is(err, ErrNoSuchVersion) {
			t.Errorf("down to %d: %v", to, err)
		}
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	var up, down bytes.Buffer
	must.Succeed(t, errors.Join(tables.Print(&up, false), tables.Print(&down, true)))
	for name, text := range map[string]string{"up": up.String(), "down": down.String()} {
		if strings.Contains(text, "+goose") {
			t.Errorf("%s has goose's annotations:\n%s", name, text)
		}
	}
	order := func(text string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			_, after, ok := strings.Cut(text, p)
			if !ok {
				t.Errorf("%q is missing or in the wrong place", p)
			}
			text = after
		}
	}
	order(up.String(), "-- pglimit 00001_tables\n", "CREATE TABLE pglimit_token_bucket", "-- pglimit 00002_storage\n", "SET (fillfactor", "-- pglimit 00003_views\n", "CREATE VIEW pglimit_token_bucket_now")
	order(down.String(), "-- pglimit 00003_views\n", "DROP VIEW pglimit_token_bucket_now", "-- pglimit 00002_storage\n", "RESET (fillfactor", "-- pglimit 00001_tables\n", "DROP TABLE pglimit_token_bucket")
	if strings.Contains(up.String(), "\nDROP ") || strings.Contains(down.String(), "CREATE ") {
		t.Error("a statement of up is a DROP, or down contains CREATE")
	}
	if err := tables.Print(brokenPipe{}, false); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Print to a closed pipe: got %v, want %v", err, io.ErrClosedPipe)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestNamesFit: PostgreSQL cuts names at 63 bytes, and an error of a constraint says its name.
func TestNamesFit(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`(?i)(?:CONSTRAINT|INDEX|TABLE|VIEW|FUNCTION|TRIGGER|TYPE) (?:IF NOT EXISTS )?(?:"([^"]+)"|[a-z]+\.(\w+)|(\w+))`)
	n := 0
	for _, files := range []string{"../../migrations/*.sql", "../../migrations/functions/*.sql"} {
		for _, path := range must.OK(filepath.Glob(files))(t) {
			for _, found := range named.FindAllStringSubmatch(string(must.OK(os.ReadFile(path))(t)), -1) {
				n++
				if name := found[1] + found[2] + found[3]; len(name) > 63 {
					t.Errorf("%s: %q has %d bytes", path, name, len(name))
				}
			}
		}
	}
	if n < 200 {
		t.Errorf("%d names were found", n)
	}
}
