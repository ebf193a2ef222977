package command

import (
	"bytes"
	"fmt"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/migrations"
)

func TestCommandMigrates(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	pool := bed.Connect(t, address)
	expect := func(want string, args ...string) {
		t.Helper()
		var m bed.MigrateResult
		bed.PglimitJSON(t, &m, address, append([]string{"migrate"}, args...)...)
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
	all := bed.Migrations(0)
	expect("up: "+strings.Join(all[1:], " "), "up")
	expect("up:", "up")
	bed.CheckMigratedOnce(t, pool)
	for i := len(all) - 1; i >= 2; i-- {
		expect("down: "+all[i], "down")
	}
	expect("down: 2 storage", "down", "--to", "1")
	expect("down: 1 tables", "down", "--to", "0")
	expect("down:", "down")
	if left := bed.Schema(t, pool); left != "" {
		t.Errorf("down left:\n%s", left)
	}

	code, stdout, stderr := bed.Pglimit(t, address, "migrate", "up")
	if code != 0 || !strings.HasPrefix(stdout, "up 00001 tables (") || strings.Count(stdout, "\n") != len(all) {
		t.Errorf("up: exit code %d, stdout %q", code, stdout)
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)
	if strings.HasPrefix(cfg.Host, "/") { // a socket's directory
		at = fmt.Sprintf("%s port %d", cfg.Host, cfg.Port)
	}
	want := fmt.Sprintf("database: %s at %s as %s\n", cfg.Database, at, cfg.User)
	if stderr != want || cfg.Password != "" && strings.Contains(stdout+stderr, cfg.Password) {
		t.Errorf("up: stderr %q, want %q", stderr, want)
	}
	if code, stdout, _ := bed.Pglimit(t, address, "migrate", "up"); code != 0 || stdout != "nothing to do\n" {
		t.Errorf("the second up: exit code %d, stdout %q", code, stdout)
	}
	// The flag takes precedence over the environment.
	if code, _, stderr := bed.Pglimit(t, "postgres://nobody@127.0.0.1:1/none", "migrate", "status", "--database-url", address); code != 0 {
		t.Errorf("--database-url: exit code %d, %s", code, stderr)
	}
}

func TestCommandStatus(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	bed.Pglimit(t, address, "migrate", "up", "--to", "2")
	var status commandStatus
	bed.PglimitJSON(t, &status, address, "migrate", "status")
	if len(status.Migrations) != len(bed.Migrations(0)) {
		t.Fatalf("got %+v", status)
	}
	for i, m := range status.Migrations {
		if fmt.Sprint(m.Version, " ", m.Name) != bed.Migrations(0)[i] || m.Applied != (i < 2) || (m.AppliedAt != nil) != m.Applied {
			t.Errorf("got %+v", m)
		}
	}
	code, stdout, _ := bed.Pglimit(t, address, "migrate", "status")
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != len(status.Migrations)+2 || !strings.Contains(lines[1], "tables") || !strings.HasSuffix(lines[2], "Z") || !strings.HasSuffix(lines[3], "pending") {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
}

// TestCommandMigratesTwiceAtOnce starts two processes at the same time.
func TestCommandMigratesTwiceAtOnce(t *testing.T) {
	t.Parallel()
	address := bed.EmptyDatabase(t)
	var out [2]bytes.Buffer
	var cmds [2]*osexec.Cmd
	for i := range cmds {
		cmds[i] = bed.Command(t, address, "migrate", "up")
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
	if n := strings.Count(out[0].String()+out[1].String(), "up 0000"); n != len(bed.Migrations(0)) {
		t.Errorf("together they ran %d migrations, want %d: %s%s", n, len(bed.Migrations(0)), &out[0], &out[1])
	}
	bed.CheckMigratedOnce(t, bed.Connect(t, address))
}

func TestCommandExitCodes(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)

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
		code, stdout, stderr := bed.Pglimit(t, c.database, strings.Fields(c.args)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		last := lines[len(lines)-1]
		if code != c.code || stdout != "" || !strings.HasPrefix(last, "pglimit: ") || !strings.Contains(last, c.want) || strings.Contains(stderr, "secret") {
			t.Errorf("%s: exit code %d, want %d; stdout %q; stderr %q, want %q in it", c.args, code, c.code, stdout, stderr, c.want)
		}
	}
	// What was undone before an error is reported.
	bed.Exec(t, pool, `CREATE VIEW mine AS SELECT * FROM pglimit_gcra`)
	code, stdout, stderr := bed.Pglimit(t, address, "migrate", "down", "--to", "0")
	if code != 3 || strings.Count(stdout, "down 0000") != len(bed.Migrations(1)) || !strings.Contains(stderr, "drop that first") {
		t.Errorf("down with a view in the way: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	bed.Exec(t, pool, `INSERT INTO `+migrations.VersionTable+` (version_id, is_applied) VALUES (99, true)`)
	if code, _, stderr := bed.Pglimit(t, address, "migrate", "down"); code != 3 || !strings.Contains(stderr, "does not know") {
		t.Errorf("down of an unknown migration: exit code %d, stderr %q", code, stderr)
	}
}
