package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/migrations"
)

// commandStatus is what migrate status --json prints.
type commandStatus struct {
	Migrations []struct {
		Version   int64
		Name      string
		Applied   bool
		AppliedAt *time.Time `json:"applied_at"`
		Objects   string
		Missing   []string
	}
	Record    string
	Elsewhere bool `json:"recorded_elsewhere"`
	Goose     []struct {
		Table    string
		Versions []struct {
			Version   int64
			AppliedAt time.Time `json:"applied_at"`
			Name      string
		}
	}
}

// String renders it as "1 applied present, 2 pending missing; goose_db_version 1 2=tables".
func (s commandStatus) String() string {
	var all []string
	for _, m := range s.Migrations {
		applied := "pending"
		if m.Applied {
			applied = "applied"
		}
		all = append(all, fmt.Sprint(m.Version, " ", applied, " ", m.Objects))
	}
	text := strings.Join(all, ", ")
	for _, g := range s.Goose {
		text += "; " + g.Table
		for _, v := range g.Versions {
			text += fmt.Sprint(" ", v.Version)
			if v.Name != "" {
				text += "=" + v.Name
			}
		}
	}
	return text
}

func statusOf(t *testing.T, address, want string, args ...string) {
	t.Helper()
	var s commandStatus
	bed.PglimitJSON(t, &s, address, append([]string{"migrate", "status"}, args...)...)
	if s.String() != want || s.Elsewhere != strings.Contains(strings.Split(want, ";")[0], "pending p") {
		t.Errorf("%q: got  %s\nwant %s; elsewhere %v", args, s, want, s.Elsewhere)
	}
}

// each returns the status of all migrations: the first have states, and those after them
// the last of states.
func each(states ...string) string {
	var all []string
	for i := range bed.Migrations(0) {
		all = append(all, fmt.Sprint(i+1, " ", states[min(i, len(states)-1)]))
	}
	return strings.Join(all, ", ")
}

// TestStatusOfExported: the tables come from the application's goose folder. status says
// that they exist, and shows goose's record.
func TestStatusOfExported(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	pool := bed.Connect(t, address)
	statusOf(t, address, each("pending missing"))

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "00001_users.sql"), []byte("-- +goose Up\nCREATE TABLE users (id bigint);\n-- +goose Down\nDROP TABLE users;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Export(dir); err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.UpTo(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	statusOf(t, address, each("pending present", "pending missing")+"; goose_db_version 1 2=tables", "--dir", dir)
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, bare, named := each("pending present"), "; goose_db_version 1", "; goose_db_version 1"
	for i, m := range bed.Migrations(0) {
		_, name, _ := strings.Cut(m, " ")
		bare, named = fmt.Sprint(bare, " ", i+2), fmt.Sprint(named, " ", i+2, "=", name)
	}
	statusOf(t, address, all+bare)
	statusOf(t, address, all+named, "--dir", dir, "--table", "public.goose_db_version")
	code, stdout, stderr := bed.Pglimit(t, address, "migrate", "status", "--dir", dir)
	for _, want := range []string{"00001    tables          present, not recorded\n", "pglimit_goose_db_version does not record what exists: another tool", "\ngoose_db_version of goose records:\n\n00001  20", "Z  pglimit tables\n"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, %q not in %s%s", code, want, stdout, stderr)
		}
	}
	if _, err := p.DownTo(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	statusOf(t, address, each("pending present", "pending present", "pending missing")+"; goose_db_version 1 2 3")

	// Older versions of goose recorded an undone migration by another row.
	bed.Exec(t, pool, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (3, false), (1, false), (1, true)`)
	statusOf(t, address, each("pending present", "pending present", "pending missing")+"; goose_db_version 1 2")

	for args, want := range map[string]string{
		"--table users":          `--table: no such version table: "users": name a table of goose that this role may read`,
		"--table none":           `"none": name a table of goose`,
		"--table=":               "--table is empty",
		"--dir no/such/folder":   "--dir: open no/such/folder",
		"--table x'y;--":         `"x'y;--": name`,
		"--table pg_class extra": "unknown command",
	} {
		if code, stdout, stderr := bed.Pglimit(t, address, append([]string{"migrate", "status"}, strings.Fields(args)...)...); code != 2 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %q", args, code, stdout, stderr, want)
		}
	}
}

// TestStatusOfPrinted: the tables come from printed SQL, in a schema of the search_path, and
// some are gone.
func TestStatusOfPrinted(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	pool := bed.Connect(t, address)
	var sql strings.Builder
	if err := migrations.Print(&sql, false); err != nil {
		t.Fatal(err)
	}
	bed.Exec(t, pool, sql.String())
	statusOf(t, address, each("pending present"))
	bed.Exec(t, pool, `DROP VIEW pglimit_keys, pglimit_gcra_now, pglimit_token_bucket_now; ALTER TABLE pglimit_gcra RESET (fillfactor)`)
	statusOf(t, address, each("pending present", "pending partly", "pending partly", "pending present", "pending present", "pending present", "pending missing"))
	_, stdout, _ := bed.Pglimit(t, address, "migrate", "status")
	for _, want := range []string{"pending, but partly there: fillfactor of pglimit_gcra missing\n", "pending, but partly there: pglimit_token_bucket_now, pglimit_gcra_now missing\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in %s", want, stdout)
		}
	}
	bed.Exec(t, pool, `CREATE SCHEMA elsewhere`)
	at := address + "?search_path=elsewhere"
	if strings.Contains(address, "?") {
		at = address + "&search_path=elsewhere"
	}
	statusOf(t, at, each("pending missing"))
}

// TestStatusOfFunctions: the SQL functions, up and down.
func TestStatusOfFunctions(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	pool := bed.Connect(t, address)
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	statusOf(t, address, each("applied present"))
	statusOf(t, address, "1 pending missing, 2 pending unknown", "--functions")
	bed.Exec(t, pool, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	if err := migrations.UpFunctions(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	statusOf(t, address, "1 applied present, 2 applied unknown", "--functions")
	bed.Exec(t, pool, `DROP VIEW pglimit_keys, pglimit_gcra_now`)
	_, stdout, _ := bed.Pglimit(t, address, "migrate", "status")
	if !strings.Contains(stdout, "Z, but partly there: pglimit_gcra_now missing\n") {
		t.Errorf("got %s", stdout)
	}
	bed.Exec(t, pool, `DELETE FROM pglimit_functions_goose_db_version`)
	statusOf(t, address, "1 pending present, 2 pending unknown", "--functions")
}
