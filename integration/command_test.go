package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/throwaway/checkout"
	"github.com/pglimit/pglimit/migrations"
)

var binaryDir string // set by build; TestMain removes it

// build builds the command, once for all tests, and returns its path.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pglimit-command-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	return checkout.BuildCommand(dir)
})

func removeBinary() error {
	if binaryDir == "" {
		return nil
	}
	return os.RemoveAll(binaryDir)
}

// command prepares the built command over a database, which DATABASE_URL names.
func command(t *testing.T, database string, args ...string) *osexec.Cmd {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatalf("build the command: %v", err)
	}
	cmd := osexec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database)
	return cmd
}

// pglimit runs the command and returns its exit code and what it wrote.
func pglimit(t *testing.T, database string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, database, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *osexec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// pglimitJSON runs the command with --json, decodes what it wrote and expects
// exit code 0.
func pglimitJSON(t *testing.T, into any, database string, args ...string) {
	t.Helper()
	code, stdout, stderr := pglimit(t, database, append(args, "--json")...)
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || code != 0 {
		t.Fatalf("%q: exit code %d, %v: stdout %q, stderr %q", args, code, err, stdout, stderr)
	}
}

type migrateResult struct {
	Direction  string
	Migrations []struct {
		Version int64
		Name    string
		Took    string
	}
	Warnings []string
}

func (m migrateResult) String() string {
	text := m.Direction + ":"
	for _, s := range m.Migrations {
		text += fmt.Sprint(" ", s.Version, " ", s.Name)
	}
	return text
}

func TestCommandMigrates(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	pool := connect(t, address)
	expect := func(want string, args ...string) {
		t.Helper()
		var m migrateResult
		pglimitJSON(t, &m, address, append([]string{"migrate"}, args...)...)
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
	expect("up: 2 storage 3 views", "up")
	expect("up:", "up")
	checkMigratedOnce(t, pool)
	expect("down: 3 views", "down")
	expect("down: 2 storage", "down", "--to", "1")
	expect("down: 1 tables", "down", "--to", "0")
	expect("down:", "down")
	if left := schema(t, pool); left != "" {
		t.Errorf("down left:\n%s", left)
	}

	code, stdout, stderr := pglimit(t, address, "migrate", "up")
	if code != 0 || !strings.HasPrefix(stdout, "up 00001 tables (") || strings.Count(stdout, "\n") != 3 {
		t.Errorf("up: exit code %d, stdout %q", code, stdout)
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("database: %s at %s:%d as %s\n", cfg.Database, cfg.Host, cfg.Port, cfg.User)
	if stderr != want || cfg.Password != "" && strings.Contains(stdout+stderr, cfg.Password) {
		t.Errorf("up: stderr %q, want %q", stderr, want)
	}
	if code, stdout, _ := pglimit(t, address, "migrate", "up"); code != 0 || stdout != "nothing to do\n" {
		t.Errorf("the second up: exit code %d, stdout %q", code, stdout)
	}
	// The flag goes before the environment.
	if code, _, stderr := pglimit(t, "postgres://nobody@127.0.0.1:1/none", "migrate", "status", "--database-url", address); code != 0 {
		t.Errorf("--database-url: exit code %d, %s", code, stderr)
	}
}

func TestCommandStatus(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	pglimit(t, address, "migrate", "up", "--to", "2")
	var status struct {
		Migrations []struct {
			Version   int64
			Name      string
			Applied   bool
			AppliedAt *time.Time `json:"applied_at"`
		}
	}
	pglimitJSON(t, &status, address, "migrate", "status")
	if len(status.Migrations) != 3 {
		t.Fatalf("got %+v", status)
	}
	for i, m := range status.Migrations {
		if m.Version != int64(i+1) || m.Applied != (i < 2) || (m.AppliedAt != nil) != m.Applied {
			t.Errorf("got %+v", m)
		}
	}
	code, stdout, _ := pglimit(t, address, "migrate", "status")
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != 5 || !strings.Contains(lines[1], "tables") || !strings.HasSuffix(lines[2], "Z") || !strings.HasSuffix(lines[3], "pending") {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
}

// TestCommandMigratesTwiceAtOnce starts two processes together.
func TestCommandMigratesTwiceAtOnce(t *testing.T) {
	t.Parallel()
	address := emptyDatabase(t)
	var out [2]bytes.Buffer
	var cmds [2]*osexec.Cmd
	for i := range cmds {
		cmds[i] = command(t, address, "migrate", "up")
		cmds[i].Stdout, cmds[i].Stderr = &out[i], &out[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, &out[i])
		}
	}
	if n := strings.Count(out[0].String()+out[1].String(), "up 0000"); n != 3 {
		t.Errorf("together they ran %d migrations, want 3: %s%s", n, &out[0], &out[1])
	}
	checkMigratedOnce(t, connect(t, address))
}

func TestCommandExitCodes(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	pool := connect(t, address)

	for _, c := range []struct {
		args     string
		database string
		code     int
		want     string // part of stderr's last line
	}{
		{"migrate up", "", 2, "set DATABASE_URL or pass --database-url"},
		{"migrate up --to 99", address, 2, "take one of [1 2 3]"},
		{"migrate down --to 99", address, 2, "take 0 or one of [1 2 3]"},
		{"migrate up", "postgres://nobody:secret@127.0.0.1:1/none", 3, "connect"},
	} {
		code, stdout, stderr := pglimit(t, c.database, strings.Fields(c.args)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		last := lines[len(lines)-1]
		if code != c.code || stdout != "" || !strings.HasPrefix(last, "pglimit: ") || !strings.Contains(last, c.want) || strings.Contains(stderr, "secret") {
			t.Errorf("%s: exit code %d, want %d; stdout %q; stderr %q, want %q in it", c.args, code, c.code, stdout, stderr, c.want)
		}
	}
	// What was undone before an error is told.
	exec(t, pool, `CREATE VIEW mine AS SELECT * FROM pglimit_gcra`)
	code, stdout, stderr := pglimit(t, address, "migrate", "down", "--to", "0")
	if code != 3 || strings.Count(stdout, "down 0000") != 2 || !strings.Contains(stderr, "drop that first") {
		t.Errorf("down with a view in the way: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	exec(t, pool, `INSERT INTO `+migrations.VersionTable+` (version_id, is_applied) VALUES (99, true)`)
	if code, _, stderr := pglimit(t, address, "migrate", "down"); code != 3 || !strings.Contains(stderr, "does not know") {
		t.Errorf("down of an unknown migration: exit code %d, stderr %q", code, stderr)
	}
}
