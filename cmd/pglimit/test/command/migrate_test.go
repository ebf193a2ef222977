package command

import (
	"bytes"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

func TestCommandMigrates(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	pool := testworld.Connect(t, address)
	expect := func(want string, args ...string) {
		t.Helper()
		var m testworld.MigrateResult
		testworld.PglimitJSON(t, &m, address, append([]string{"migrate"}, args...)...)
		if m.String() != want {
			t.Errorf("%q: %s, want %s", args, m, want)
		}
		for _, s := range m.Migrations {
			if _, err := time.ParseDuration(s.Took); err != nil {
				t.Errorf("%q: took %q: %v", args, s.Took, err)
			}
		}
	}
	expect("up: 1 tables", "up", "--to", "1")
	all := testworld.Migrations(0)
	expect("up: "+strings.Join(all[1:], " "), "up")
	expect("up:", "up")
	testworld.CheckMigratedOnce(t, pool)
	for i := len(all) - 1; i >= 2; i-- {
		expect("down: "+all[i], "down", "--yes")
	}
	expect("down: 2 storage", "down", "--to", "1", "--yes")
	expect("down: 1 tables", "down", "--to", "0", "--yes")
	expect("down:", "down")
	if left := testworld.Schema(t, pool); left != "" {
		t.Errorf("down left:\n%s", left)
	}

	code, stdout, stderr := testworld.Pglimit(t, address, "migrate", "up")
	if code != 0 || !strings.HasPrefix(stdout, "up 00001 tables (") || strings.Count(stdout, "\n") != len(all) {
		t.Errorf("up: exit code %d, stdout %q", code, stdout)
	}
	config := must.OK(pgx.ParseConfig(address))(t)
	at := fmt.Sprintf("%s:%d", config.Host, config.Port)
	if strings.HasPrefix(config.Host, "/") { // a socket's directory
		at = fmt.Sprintf("%s port %d", config.Host, config.Port)
	}
	want := fmt.Sprintf("database: %s at %s as %s\n", config.Database, at, config.User)
	if stderr != "" {
		t.Errorf("up: stderr %q", stderr)
	}
	code, stdout, stderr = testworld.Pglimit(t, address, "migrate", "up", "--verbose")
	if code != 0 || stdout != "nothing to do\n" || stderr != want || config.Password != "" && strings.Contains(stdout+stderr, config.Password) {
		t.Errorf("the second up: exit code %d, stdout %q, stderr %q, want %q", code, stdout, stderr, want)
	}
	// The flag takes precedence over the environment.
	if code, _, stderr := testworld.Pglimit(t, "postgres://nobody@127.0.0.1:1/none", "migrate", "status", "--database-url", address); code != 0 {
		t.Errorf("--database-url: exit code %d, %s", code, stderr)
	}
}

func TestCommandStatus(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	testworld.Pglimit(t, address, "migrate", "up", "--to", "2")
	var status commandStatus
	testworld.PglimitJSON(t, &status, address, "migrate", "status")
	if len(status.Migrations) != len(testworld.Migrations(0)) {
		t.Fatalf("got %+v", status)
	}
	for i, m := range status.Migrations {
		if fmt.Sprint(m.Version, " ", m.Name) != testworld.Migrations(0)[i] || m.Applied != (i < 2) || (m.AppliedAt != nil) != m.Applied {
			t.Errorf("got %+v", m)
		}
	}
	code, stdout, _ := testworld.Pglimit(t, address, "migrate", "status")
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != len(status.Migrations)+2 || !strings.Contains(lines[1], "tables") || !strings.HasSuffix(lines[2], "Z") || !strings.HasSuffix(lines[3], "pending") {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
}

// TestCommandMigratesTwiceAtOnce starts two processes at the same time.
func TestCommandMigratesTwiceAtOnce(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	var out [2]bytes.Buffer
	var cmds [2]*osexec.Cmd
	for i := range cmds {
		cmds[i] = testworld.Command(t, address, "migrate", "up")
		cmds[i].Stdout, cmds[i].Stderr = &out[i], &out[i]
		must.Succeed(t, cmds[i].Start())
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, &out[i])
		}
	}
	if n := strings.Count(out[0].String()+out[1].String(), "up 000"); n != len(testworld.Migrations(0)) {
		t.Errorf("together they ran %d migrations, want %d: %s%s", n, len(testworld.Migrations(0)), &out[0], &out[1])
	}
	testworld.CheckMigratedOnce(t, testworld.Connect(t, address))
}

func TestCommandExitCodes(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)

	for _, c := range []struct {
		args     string
		database string
		code     int
		want     string // part of stderr's last line
	}{
		{"migrate up", "", 2, "set DATABASE_URL or pass --database-url"},
		{"migrate up --to 99", address, 2, "take one of [1 2 3 "},
		{"migrate down --to 99", address, 2, "take 0 or one of [1 2 3 "},
		{"migrate up", "postgres://nobody:secret@127.0.0.1:1/none", 3, "connect"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, c.database, strings.Fields(c.args)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		last := lines[len(lines)-1]
		if code != c.code || stdout != "" || !strings.HasPrefix(last, "pglimit: ") || !strings.Contains(last, c.want) || strings.Contains(stderr, "secret") {
			t.Errorf("%s: exit code %d, want %d; stdout %q; stderr %q, want %q in it", c.args, code, c.code, stdout, stderr, c.want)
		}
	}
	testworld.Pglimit(t, address, "allow", "--limit", "5", "--algorithm", "gcra", "k")
	for args, goes := range map[string]string{
		"migrate down":        "down undoes\n  00016 ledger pglimit_ledger (0 rows)\nGo on? [y/N]",
		"migrate down --to 0": "pglimit_token_bucket (1 row), pglimit_fixed_window (0 rows), ",
	} {
		if code, stdout, stderr := testworld.Pglimit(t, address, strings.Fields(args)...); code != 2 || stdout != "" || !strings.Contains(stderr, goes) || !strings.Contains(stderr, "pass --yes") {
			t.Errorf("%s without an answer: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	// What was undone before an error is reported.
	testworld.Exec(t, pool, `CREATE VIEW mine AS SELECT * FROM pglimit_token_bucket`)
	code, stdout, stderr := testworld.Pglimit(t, address, "migrate", "down", "--to", "0", "--yes")
	if code != 3 || strings.Count(stdout, "down 000") != len(testworld.Migrations(1)) || !strings.Contains(stderr, "drop that first") {
		t.Errorf("down with a view in the way: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	testworld.Exec(t, pool, `INSERT INTO `+sets.Tables.VersionTable()+` (version_id, is_applied) VALUES (99, true)`)
	if code, _, stderr := testworld.Pglimit(t, address, "migrate", "down", "--yes"); code != 3 || !strings.Contains(stderr, "does not know") {
		t.Errorf("down of an unknown migration: exit code %d, stderr %q", code, stderr)
	}
}

// commandStatus is what migrate status --json prints.
type commandStatus struct {
	Migrations []struct {
		Version   int64
		Name      string
		Applied   bool
		AppliedAt *time.Time `json:"applied_at"`
		Objects   string
		Missing   []string
		Changed   []string
	}
	Record    string
	Elsewhere bool      `json:"recorded_elsewhere"`
	Cluster   *struct{} // none
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
	testworld.PglimitJSON(t, &s, address, append([]string{"migrate", "status"}, args...)...)
	if s.String() != want || s.Elsewhere != strings.Contains(strings.Split(want, ";")[0], "pending p") {
		t.Errorf("%q: got  %s\nwant %s; elsewhere %v", args, s, want, s.Elsewhere)
	}
}

// each returns the status of all migrations: the first have states, and those after them
// the last of states.
func each(states ...string) string {
	var all []string
	for i, name := range testworld.Migrations(0) {
		state := states[min(i, len(states)-1)]
		if strings.HasSuffix(name, " gcra") { // it makes nothing
			state = strings.Fields(state)[0] + " unknown"
		}
		all = append(all, fmt.Sprint(i+1, " ", state))
	}
	return strings.Join(all, ", ")
}

// TestStatusOfExported: the tables come from the application's goose folder. status says
// that they exist, and shows goose's record.
func TestStatusOfExported(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	pool := testworld.Connect(t, address)
	statusOf(t, address, each("pending missing"))

	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "00001_users.sql"), []byte("-- +goose Up\nCREATE TABLE users (id bigint);\n-- +goose Down\nDROP TABLE users;\n"), 0o600))
	must.OK(sets.Tables.Export(dir))(t)
	p := must.OK(goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), os.DirFS(dir)))(t)
	defer p.Close()
	must.OK(p.UpTo(t.Context(), 2))(t)
	statusOf(t, address, each("pending present", "pending missing")+"; goose_db_version 1 2=tables", "--dir", dir)
	must.OK(p.Up(t.Context()))(t)
	all, bare, named := each("pending present"), "; goose_db_version 1", "; goose_db_version 1"
	for i, m := range testworld.Migrations(0) {
		_, name, _ := strings.Cut(m, " ")
		bare, named = fmt.Sprint(bare, " ", i+2), fmt.Sprint(named, " ", i+2, "=", name)
	}
	statusOf(t, address, all+bare)
	statusOf(t, address, all+named, "--dir", dir, "--table", "public.goose_db_version")
	code, stdout, stderr := testworld.Pglimit(t, address, "migrate", "status", "--dir", dir)
	for _, want := range []string{"00001    tables          present, not recorded\n", "pglimit_goose_db_version does not record what exists: another tool", "\ngoose_db_version of goose records:\n\n00001  20", "Z  pglimit tables\n"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, %q not in %s%s", code, want, stdout, stderr)
		}
	}
	must.OK(p.DownTo(t.Context(), 3))(t)
	statusOf(t, address, each("pending present", "pending present", "pending missing")+"; goose_db_version 1 2 3")

	// Older versions of goose recorded an undone migration by another row.
	testworld.Exec(t, pool, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (3, false), (1, false), (1, true)`)
	statusOf(t, address, each("pending present", "pending present", "pending missing")+"; goose_db_version 1 2")

	for args, want := range map[string]string{
		"--table users":          `--table: no such version table: "users": name a table of goose that this role may read`,
		"--table none":           `"none": name a table of goose`,
		"--table=":               "--table is empty",
		"--dir no/such/folder":   "--dir: open no/such/folder",
		"--table x'y;--":         `"x'y;--": name`,
		"--table pg_class extra": "got 1 argument",
	} {
		if code, stdout, stderr := testworld.Pglimit(t, address, append([]string{"migrate", "status"}, strings.Fields(args)...)...); code != 2 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %q", args, code, stdout, stderr, want)
		}
	}
}

// TestStatusOfPrinted: the tables come from printed SQL, in a schema of the search_path, and
// some are gone.
func TestStatusOfPrinted(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	pool := testworld.Connect(t, address)
	var sql strings.Builder
	must.Succeed(t, sets.Tables.Print(&sql, false))
	testworld.Exec(t, pool, sql.String())
	statusOf(t, address, each("pending present"))
	testworld.Exec(t, pool, `DROP VIEW pglimit_keys, pglimit_leaky_bucket_now, pglimit_token_bucket_now; ALTER TABLE pglimit_token_bucket RESET (fillfactor)`)
	statusOf(t, address, each("pending present", "pending partly", "pending partly", "pending present", "pending present", "pending present", "pending missing", "pending present"))
	_, stdout, _ := testworld.Pglimit(t, address, "migrate", "status")
	for _, want := range []string{"pending, but partly there: fillfactor of pglimit_token_bucket missing\n", "pending, but partly there: pglimit_leaky_bucket_now missing, pglimit_token_bucket_now missing\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in %s", want, stdout)
		}
	}
	testworld.Exec(t, pool, `CREATE SCHEMA elsewhere`)
	at := address + "?search_path=elsewhere"
	if strings.Contains(address, "?") {
		at = address + "&search_path=elsewhere"
	}
	statusOf(t, at, each("pending missing"))
}

// TestStatusOfFunctions: the SQL functions, up and down.
func TestStatusOfFunctions(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	pool := testworld.Connect(t, address)
	must.Succeed(t, sets.Tables.Up(t.Context(), pool))
	statusOf(t, address, each("applied present"))
	statusOf(t, address, "1 pending missing, 2 pending unknown", "--functions")
	testworld.Exec(t, pool, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	must.Succeed(t, sets.Functions.Up(t.Context(), pool))
	statusOf(t, address, "1 applied present, 2 applied unknown", "--functions")
	testworld.Exec(t, pool, `DROP VIEW pglimit_keys, pglimit_token_bucket_now; ALTER TABLE pglimit_policy DISABLE TRIGGER pglimit_policy_stamp; DELETE FROM pglimit_goose_db_version WHERE version_id = 8;
		INSERT INTO pglimit_functions_goose_db_version (version_id, is_applied) VALUES (7, true)`)
	_, stdout, _ := testworld.Pglimit(t, address, "migrate", "status")
	if !strings.Contains(stdout, "Z, but partly there: pglimit_token_bucket_now missing\n") || !strings.Contains(stdout, "Z, but partly there: trigger pglimit_policy_stamp of pglimit_policy off or changed\n") {
		t.Errorf("got %s", stdout)
	}
	if _, stdout, _ := testworld.Pglimit(t, address, "migrate", "status", "--functions"); !strings.Contains(stdout, "00007    of a later release  20") {
		t.Errorf("got %s", stdout)
	}
	if _, stdout, _ := testworld.Pglimit(t, address, "migrate", "up"); !strings.HasPrefix(stdout, "repaired 00003 views: pglimit_token_bucket_now missing\n") || !strings.HasSuffix(stdout, "repaired 00008 programs: its record missing\n") {
		t.Errorf("up: %s", stdout)
	}
	testworld.Exec(t, pool, `DELETE FROM pglimit_functions_goose_db_version`)
	statusOf(t, address, "1 pending present, 2 pending unknown", "--functions")
}
