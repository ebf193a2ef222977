package commands_test

import (
	"encoding/json"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
)

// TestMistypedCommand: an unknown subcommand is named, and those that may be meant with it, also if
// flags of the right one follow.
func TestMistypedCommand(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"alow bob":                              `unknown command "alow"; did you mean "allow"? See `,
		"alow --limit 10 --period 1m bob":       `unknown command "alow"; did you mean "allow"? See `,
		"--embedded alow --limit 10 bob":        `unknown command "alow"; did you mean "allow"? See `,
		"ALLOW bob":                             `unknown command "ALLOW"; did you mean "allow"? See `,
		"lalow":                                 `did you mean "allow"?`,
		"cahrge k":                              `did you mean "charge"?`,
		"play":                                  `did you mean "playground" or "replay"?`,
		"rese":                                  `did you mean "renew" or "reserve" or "reserve-all" or "reserve-up-to" or "reset"?`,
		"status":                                `did you mean "migrate status"?`,
		"migrate upp":                           `unknown command "upp"; did you mean "up"? See ` + "`pglimit migrate --help`",
		"migrate upp --to 3":                    `unknown command "upp"; did you mean "up"?`,
		"migrate statsu --functions":            `unknown command "statsu"; did you mean "status"?`,
		"completion bsh":                        `unknown command "bsh"; did you mean "bash" or "fish" or "zsh"?`,
		"help alow":                             `unknown command "alow"; did you mean "allow"?`,
		"help migrate upp":                      `unknown command "upp"; did you mean "up"?`,
		"sideways":                              `unknown command "sideways"; see `,
		"keep-embeded":                          `unknown command "keep-embeded"; see `, // hidden
		strings.Repeat("x", 100000):             `unknown command "` + strings.Repeat("x", 60) + `"; see `,
		"x":                                     `unknown command "x"; see `,
		"\x1b[31m":                              `unknown command "\x1b[31m"; see `,
		"postgres://app:kangaroo@db/shop":       "unknown command: it is not shown",
		"host=db password=kangaroo":             `unknown command "host=db"`,
		"--limit 10 alow bob":                   "unknown flag: --limit",
		"allow --limt 5 bob":                    `unknown flag: --limt; did you mean "--limit"? See `,
		"allow -limit 5 bob":                    `unknown shorthand flag: 'l' in -limit; did you mean "--limit"? See `,
		"allow --p 5 bob":                       `did you mean "--period" or "--policy"? See `,
		"grant acme -5":                         `-5 begins with -, so it is read as a flag: write -- before the arguments, as in ` + "`pglimit grant -- KEY UNITS`",
		"allow --limit 5 --floor abc bob":       `--floor is "abc": use a number, such as 0.2`,
		"top --json-lines":                      "unknown flag: --json-lines; see ",
		"-postgres://app:kangaroo4711@db/shop":  "unknown shorthand flag",
		"migrate up -x://app:kangaroo4711@db/s": "unknown shorthand flag",
	} {
		code, stdout, stderr := commandtest.Call(t, strings.Fields(args)...)
		if code != cli.ExitUsage || stdout != "" || !strings.HasPrefix(stderr, "pglimit: ") || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "kangaroo") {
			t.Errorf("%.100s: exit code %d, stdout %.100q, stderr %.300q; want %q", args, code, stdout, stderr, want)
		}
	}
	for _, args := range []string{"help", "help allow", "help migrate", "help migrate up", "help completion bash", "completion", ""} {
		if code, stdout, stderr := commandtest.Call(t, strings.Fields(args)...); code != 0 || !strings.Contains(stdout, "Usage:\n") || stderr != "" {
			t.Errorf("%q: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

// TestRunErrorsAsJSON: with --json anywhere on the command line, an error is one line of
// JSON on stderr.
func TestRunErrorsAsJSON(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for args, want := range map[string]cli.Failure{
		"alow bob --json":                         {Message: `unknown command "alow"; did you mean "allow"?`, Code: "usage", ExitCode: 2, NextStep: "see `pglimit --help`"},
		"allow --sideways k --json":               {Message: "unknown flag: --sideways", Code: "usage", ExitCode: 2, NextStep: "see `pglimit allow --help`"},
		"--json allow --sideways k":               {Message: "unknown flag: --sideways", Code: "usage", ExitCode: 2, NextStep: "see `pglimit allow --help`"},
		"allow --sideways k --json=true":          {Message: "unknown flag: --sideways", Code: "usage", ExitCode: 2, NextStep: "see `pglimit allow --help`"},
		"alow --limit 10 --json k":                {Message: `unknown command "alow"; did you mean "allow"?`, Code: "usage", ExitCode: 2, NextStep: "see `pglimit --help`"},
		"migrate --json":                          {Message: "a subcommand is missing: use up, down, status, distribute, print, export or grants", Code: "usage", ExitCode: 2, NextStep: "see `pglimit migrate --help`"},
		"check --limit 0 k --json":                {Message: "invalid policy: Limit 0: must be from 1e-9 to 2^53", Code: "usage", ExitCode: 2, NextStep: "see `pglimit check --help`"},
		"replay --limit 1 no/such/<&>.log --json": {Message: "no/such/<&>.log: open no/such/<&>.log: no such file or directory", Code: "usage", ExitCode: 2, NextStep: "see `pglimit replay --help`"},
	} {
		code, stdout, stderr := commandtest.Call(t, strings.Fields(args)...)
		var got cli.Failure
		d := json.NewDecoder(strings.NewReader(stderr))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil || got != want || code != want.ExitCode || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %v, stdout %q, stderr %q", args, code, err, stdout, stderr)
		}
		if _, err := d.Token(); err != io.EOF {
			t.Errorf("%s: more than one value: %q", args, stderr)
		}
	}
	code, _, stderr := commandtest.Call(t, "migrate", "status", "--json", "--database-url", "postgres://app:kangaroo@127.0.0.1:1/shop")
	var got cli.Failure
	if err := json.Unmarshal([]byte(stderr), &got); err != nil || code != cli.ExitDatabase || got.Code != "database" || got.ExitCode != 3 || got.Message != "connection refused at 127.0.0.1:1: cannot connect to database shop as app" ||
		!strings.HasPrefix(got.NextStep, "start the server") || strings.Contains(stderr, "kangaroo") {
		t.Errorf("exit code %d, %v: %q", code, err, stderr)
	}
	for _, args := range []string{"allow --sideways k", "allow --sideways k -- --json", "allow --sideways --json=false", "allow --json --sideways --json=no"} {
		if _, _, stderr := commandtest.Call(t, strings.Fields(args)...); !strings.HasPrefix(stderr, "pglimit: unknown flag") && !strings.Contains(args, "=no") || strings.Contains(args, "=no") && !strings.HasPrefix(stderr, "{") {
			t.Errorf("%s: stderr %q", args, stderr)
		}
	}
}

func TestRunUsageErrors(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, c := range []struct {
		args string
		want string // part of the one line on stderr
	}{
		{"migrate", "use up, down, status, distribute, print, export or grants"},
		{"migrate sideways", `unknown command "sideways"`},
		{"sideways", `unknown command "sideways"`},
		{"--sideways", "unknown flag: --sideways"},
		{"migrate up 3", "got 1 argument: the form is `pglimit migrate up [flags]`"},
		{"migrate up --to x", "--to"},
		{"migrate down --to -1", "--to is -1"},
		{"migrate export", "got 0 arguments: the form is `pglimit migrate export DIR"},
		{"migrate export no/such/folder", "no/such/folder"},
		{"migrate up", "set DATABASE_URL or pass --database-url"},
		{"migrate down", "set DATABASE_URL or pass --database-url"},
		{"migrate status", "set DATABASE_URL or pass --database-url"},
		{"check --limit 1 k", "set DATABASE_URL or pass --database-url"},
		{"reset k", "set DATABASE_URL or pass --database-url"},
		{"prove", "set DATABASE_URL or pass --database-url"},
		{"janitor", "set DATABASE_URL or pass --database-url"},
		{"check", "got 0 arguments: the form is `pglimit check KEY [flags]`; see"},
		{"check k", "--limit is missing"},
		{"check --limit 0 k", "Limit 0: must be from 1e-9"},
		{"charge --limit 1 --algorithm bucket k", `Algorithm "bucket": must be one of`},
		{"refund --limit 1 --period 1m --policy UPPER k", `Name "UPPER": must match`},
		{"allow --limit 1 --durability no k", `--durability is "no": use durable or relaxed`},
		{"allow --limit 1 --algorithm gcra --calendar month k", `Calendar "month": is for fixed_window only`},
		{"wait --limit 1 --calendar month k", `Calendar "month": is for fixed_window only`},
		{"allow --limit 1 --calendar month --tick 1s k", "Tick 1s"},
		{"allow --limit 1 --algorithm fixed_window --calendar term k", `Calendar "term": must be hour, day, week, month, quarter or year`},
		{"check --limit 1 --algorithm fixed_window --calendar day --period 24h k", "Period 24h: must be 0 with Calendar"},
		{"check --limit 1 --algorithm fixed_window --calendar day --period 1m k", "Period 1m: must be 0 with Calendar"},
		{"charge --limit 1 --algorithm fixed_window --calendar day --time-zone Mars/Olympus k", `TimeZone "Mars/Olympus": is not known here`},
		{"charge --limit 1 --time-zone Europe/Vienna k", `TimeZone "Europe/Vienna": requires a Calendar`},
		{"wait --limit 1 --timeout -1s k", "--timeout is -1s"},
		{"wait --limit 1 --timeout soon k", `--timeout is "soon": use a number and a unit`},
		{"charge --limit ten k", `--limit is "ten": use a number, such as 10 or 2.5; see`},
		{"charge --limit NaN k", `--limit is "NaN": use a number`},
		{"top --rows x", `--rows is "x": use a whole number, such as 20; see`},
		{"find --prefix=maybe k", `--prefix is "maybe": use true or false; see`},
		{"allow-all k", "--policy is missing"},
		{"allow-all --policy a --cost x k", `--cost is "x": use a number`},
		{"override set k --policy login --limit 10y", `--limit is "10y": use a number, such as 10 or 2.5, or a multiple of the policy's, such as 10x`},
		{"override set k --policy login --limit -2x", `--limit is "-2x": use a number`},
		{"settle id x", `UNITS is "x": use a number`},
		{"block k", "DURATION is missing: only a --policy that the database or a program has can have a block without one"},
		{"block k soon", `DURATION is "soon": use a number and a unit, such as 90s, 15m`},
		{"unblock --limit 1 k", "unknown flag: --limit"},
		{"reset --algorithm x k", `Algorithm "x": must be one of`},
		{"janitor --interval 0", "--interval is 0: leave it out"},
		{"janitor now", "got 1 argument: the form is `pglimit janitor [flags]`"},
		{"prove --for 1ms", "For is 1ms: use 7ms"},
		{"prove --workers 0", "Workers is 0: use 1 to 1000"},
		{"version 1", "got 1 argument: the form is `pglimit version [flags]`"},
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
