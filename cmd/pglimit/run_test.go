package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
)

// call runs a command line in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

func TestUsageErrors(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, c := range []struct {
		args string
		want string // part of the one line on stderr
	}{
		{"migrate", "say up, down, status, print or export"},
		{"migrate sideways", `unknown command "sideways"`},
		{"sideways", `unknown command "sideways"`},
		{"--sideways", "unknown flag: --sideways"},
		{"migrate up 3", `unknown command "3"`},
		{"migrate up --to x", "--to"},
		{"migrate down --to -1", "--to is -1"},
		{"migrate export", "accepts 1 arg"},
		{"migrate export no/such/folder", "no/such/folder"},
		{"migrate up", "set DATABASE_URL or pass --database-url"},
		{"migrate down", "set DATABASE_URL or pass --database-url"},
		{"migrate status", "set DATABASE_URL or pass --database-url"},
		{"check --limit 1 k", "set DATABASE_URL or pass --database-url"},
		{"reset k", "set DATABASE_URL or pass --database-url"},
		{"prove", "set DATABASE_URL or pass --database-url"},
		{"janitor", "set DATABASE_URL or pass --database-url"},
		{"check", "accepts 1 arg"},
		{"check k", `required flag(s) "limit" not set`},
		{"check --limit 0 k", "Limit 0: must be from 1e-9"},
		{"fill --limit 1 --algorithm bucket k", `Algorithm "bucket": must be one of`},
		{"refund --limit 1 --name UPPER k", `Name "UPPER": must match`},
		{"allow --limit 1 --durability no k", `--durability is "no": take durable or relaxed`},
		{"allow --limit 1 --algorithm gcra --calendar month k", `Calendar "month": is for fixed_window only`},
		{"wait --limit 1 --calendar month k", `Calendar "month": is for fixed_window only`},
		{"allow --limit 1 --calendar month --tick 1s k", "Tick 1s"},
		{"allow --limit 1 --algorithm fixed_window --calendar year k", `Calendar "year": must be hour, day, week or month`},
		{"check --limit 1 --algorithm fixed_window --calendar day --period 24h k", "Period 24h0m0s: must be 0 with Calendar"},
		{"check --limit 1 --algorithm fixed_window --calendar day --period 1m k", "Period 1m0s: must be 0 with Calendar"},
		{"fill --limit 1 --algorithm fixed_window --calendar day --time-zone Mars/Olympus k", `TimeZone "Mars/Olympus": is not known here`},
		{"fill --limit 1 --time-zone Europe/Vienna k", `TimeZone "Europe/Vienna": is for Calendar`},
		{"wait --limit 1 --timeout -1s k", "--timeout is -1s"},
		{"wait --limit 1 --timeout soon k", `"soon" for "--timeout"`},
		{"block k", "accepts 2 arg"},
		{"block k soon", `DURATION is "soon": take a number and a unit, such as 15m`},
		{"unblock --limit 1 k", "unknown flag: --limit"},
		{"reset --algorithm x k", `Algorithm "x": must be one of`},
		{"janitor --interval 0", "--interval is 0: leave it out"},
		{"janitor now", `unknown command "now"`},
		{"prove --for 1ms", "For is 1ms: take 7ms"},
		{"prove --workers 0", "Workers is 0: take 1 to 1000"},
		{"version 1", `unknown command "1"`},
	} {
		code, stdout, stderr := call(t, strings.Fields(c.args)...)
		if code != cli.ExitUsage || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q; want %d and nothing", c.args, code, stdout, cli.ExitUsage)
		}
		if !strings.HasPrefix(stderr, "pglimit: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("%s: stderr is %q, want one line with %q", c.args, stderr, c.want)
		}
	}
}

// TestPasswordStaysSecret tries connection strings that are broken in ways
// that leave open which part the password is.
func TestPasswordStaysSecret(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]int{
		"postgres://app:hunter2@127.0.0.1:1/shop":                         cli.ExitDatabase,
		"postgres://app@127.0.0.1:1/shop?password=hunter2":                cli.ExitDatabase,
		"host=127.0.0.1 port=1 user=app password=hunter2":                 cli.ExitDatabase,
		"postgres://app:hunter2@127.0.0.1:none/shop":                      cli.ExitUsage,
		"postgres://app:hunter2@127.0.0.1:1/shop?sslmode=none":            cli.ExitUsage,
		"postgres://app:hunter2%zz@127.0.0.1:1/shop":                      cli.ExitUsage,
		"postgres://app:hun ter2@127.0.0.1:x/hunter2":                     cli.ExitUsage,
		"postgres://app:`: hunter2@127.0.0.1:x/":                          cli.ExitUsage,
		"mysql://app:hunter2@127.0.0.1:1/shop":                            cli.ExitUsage,
		"app:hunter2@127.0.0.1":                                           cli.ExitUsage,
		"host=127.0.0.1 password='hunter2":                                cli.ExitUsage,
		"postgres://app:hunter2@127.0.0.1:1/shop?connect_timeout=hunter2": cli.ExitUsage,
	} {
		code, stdout, stderr := call(t, "migrate", "status", "--database-url", address)
		if code != want || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q; want %d and nothing", address, code, stdout, want)
		}
		if strings.Contains(stderr, "hunter2") || strings.Contains(stderr, "ter2") {
			t.Errorf("%s: stderr shows the password: %s", address, stderr)
		}
		if last := strings.TrimSpace(stderr[strings.LastIndex(strings.TrimSpace(stderr), "\n")+1:]); !strings.HasPrefix(last, "pglimit: ") {
			t.Errorf("%s: stderr ends in %q", address, last)
		}
	}
}

func TestDatabaseLine(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://app:hunter2@127.0.0.1:1/shop":      "database: shop at 127.0.0.1:1 as app\n",
		"postgres://app@[::1]:1/shop":                  "database: shop at [::1]:1 as app\n",
		"host=/nonexistent port=6543 user=app":         "database: app at /nonexistent port 6543 as app\n",
		"postgres://app:hunter2@127.0.0.1:1,[::1]:1/s": "database: s at 127.0.0.1:1 as app\n",
	} {
		_, _, stderr := call(t, "migrate", "up", "--database-url", address)
		if first := stderr[:strings.Index(stderr, "\n")+1]; first != want {
			t.Errorf("%s: got %q, want %q", address, first, want)
		}
		if strings.Count(stderr, "\n") != 2 {
			t.Errorf("%s: stderr has other than two lines: %q", address, stderr)
		}
	}
}

func TestPrintAndExport(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"migrate", "print"}, {"migrate", "print", "--down"}} {
		code, text, stderr := call(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(text, "pglimit_gcra") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, text, stderr)
		}
		var result struct{ Direction, SQL string }
		decode(t, &result, append(args, "--json")...)
		if result.SQL != text || result.Direction != map[bool]string{false: "up", true: "down"}[len(args) == 3] {
			t.Errorf("%q: the JSON differs from the text: %+v", args, result)
		}
	}
	for _, args := range [][]string{{"migrate", "print", "--functions"}, {"migrate", "print", "--down", "--functions"}} {
		code, text, stderr := call(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(text, "pglimit._counter_at") && !strings.Contains(text, "'_counter_at'") || strings.Contains(text, "CREATE TABLE") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, text, stderr)
		}
	}
	functions := t.TempDir()
	if code, text, stderr := call(t, "migrate", "export", "--functions", functions); code != 0 || stderr != "" || !strings.HasSuffix(text, "00001_pglimit_functions.sql\n") {
		t.Errorf("export --functions: exit code %d, stdout %q, stderr %q", code, text, stderr)
	}
	dir := t.TempDir()
	code, text, stderr := call(t, "migrate", "export", dir)
	if code != 0 || stderr != "" || strings.Count(text, dir) != 3 {
		t.Errorf("export: exit code %d, stdout %q, stderr %q", code, text, stderr)
	}
	code, text, _ = call(t, "migrate", "export", dir)
	if code != 0 || !strings.HasPrefix(text, "nothing to do") {
		t.Errorf("the second export: exit code %d, stdout %q", code, text)
	}
	var result struct{ Files []string }
	decode(t, &result, "migrate", "export", dir, "--json")
	if result.Files == nil || len(result.Files) != 0 {
		t.Errorf("the third export: %+v, want an empty list", result)
	}
}

// decode runs a command line and reads its JSON, which has no other fields.
func decode(t *testing.T, into any, args ...string) {
	t.Helper()
	code, stdout, stderr := call(t, args...)
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || code != 0 {
		t.Fatalf("%q: exit code %d, %v: stdout %q, stderr %q", args, code, err, stdout, stderr)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("%q: more than one JSON value: %q", args, stdout)
	}
}
