package commands_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
)

func TestRunUsageErrors(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, c := range []struct {
		args string
		want string // part of the one line on stderr
	}{
		{"migrate", "use up, down, status, print, export or grants"},
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
		{"check k", "--limit is missing"},
		{"check --limit 0 k", "Limit 0: must be from 1e-9"},
		{"charge --limit 1 --algorithm bucket k", `Algorithm "bucket": must be one of`},
		{"refund --limit 1 --name UPPER k", `Name "UPPER": must match`},
		{"allow --limit 1 --durability no k", `--durability is "no": use durable or relaxed`},
		{"allow --limit 1 --algorithm gcra --calendar month k", `Calendar "month": is for fixed_window only`},
		{"wait --limit 1 --calendar month k", `Calendar "month": is for fixed_window only`},
		{"allow --limit 1 --calendar month --tick 1s k", "Tick 1s"},
		{"allow --limit 1 --algorithm fixed_window --calendar year k", `Calendar "year": must be hour, day, week or month`},
		{"check --limit 1 --algorithm fixed_window --calendar day --period 24h k", "Period 24h0m0s: must be 0 with Calendar"},
		{"check --limit 1 --algorithm fixed_window --calendar day --period 1m k", "Period 1m0s: must be 0 with Calendar"},
		{"charge --limit 1 --algorithm fixed_window --calendar day --time-zone Mars/Olympus k", `TimeZone "Mars/Olympus": is not known here`},
		{"charge --limit 1 --time-zone Europe/Vienna k", `TimeZone "Europe/Vienna": requires a Calendar`},
		{"wait --limit 1 --timeout -1s k", "--timeout is -1s"},
		{"wait --limit 1 --timeout soon k", `"soon" for "--timeout"`},
		{"block k", "accepts 2 arg"},
		{"block k soon", `DURATION is "soon": use a number and a unit, such as 90s, 15m`},
		{"unblock --limit 1 k", "unknown flag: --limit"},
		{"reset --algorithm x k", `Algorithm "x": must be one of`},
		{"janitor --interval 0", "--interval is 0: leave it out"},
		{"janitor now", `unknown command "now"`},
		{"prove --for 1ms", "For is 1ms: use 7ms"},
		{"prove --workers 0", "Workers is 0: use 1 to 1000"},
		{"version 1", `unknown command "1"`},
	} {
		code, stdout, stderr := commandtest.Call(t, strings.Fields(c.args)...)
		if code != cli.ExitUsage || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q; want %d and nothing", c.args, code, stdout, cli.ExitUsage)
		}
		if !strings.HasPrefix(stderr, "pglimit: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("%s: stderr is %q, want one line with %q", c.args, stderr, c.want)
		}
	}
}

// failingWriter is a stdout that fails.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestRunClosedPipe: a reader that closes the pipe, such as head, causes no error
// message. A full disk does.
func TestRunClosedPipe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		code   int
		silent bool
	}{{syscall.EPIPE, 141, true}, {syscall.ENOSPC, cli.ExitUsage, false}} {
		var stderr countingWriter
		code := commands.Run(t.Context(), []string{"migrate", "print"}, nil, failingWriter{c.err}, &stderr)
		if code != c.code || (stderr == 0) != c.silent {
			t.Errorf("%v: exit code %d, %d bytes on stderr", c.err, code, stderr)
		}
	}
}

type countingWriter int

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}
