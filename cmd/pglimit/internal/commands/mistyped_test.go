package commands_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
)

// TestMistypedCommand: an unknown subcommand is named, and the nearest one with it, also if
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
		"play":                                  `did you mean "playground"?`,
		"hlep":                                  `did you mean "help"?`,
		"status":                                `did you mean "migrate status"?`,
		"migrate upp":                           `unknown command "upp"; did you mean "up"? See ` + "`pglimit migrate --help`",
		"migrate upp --to 3":                    `unknown command "upp"; did you mean "up"?`,
		"migrate statsu --functions":            `unknown command "statsu"; did you mean "status"?`,
		"completion bsh":                        `unknown command "bsh"; did you mean "bash"?`,
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
		"migrate --json":                          {Message: "a subcommand is missing: use up, down, status, print, export or grants", Code: "usage", ExitCode: 2, NextStep: "see `pglimit migrate --help`"},
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
	first, last, _ := strings.Cut(stderr, "\n")
	var got cli.Failure
	if err := json.Unmarshal([]byte(last), &got); err != nil || code != cli.ExitDatabase || got.Code != "database" || got.ExitCode != 3 || !strings.HasPrefix(got.Message, "connect: ") ||
		got.NextStep != "" || first != "database: shop at 127.0.0.1:1 as app" || strings.Contains(stderr, "kangaroo") {
		t.Errorf("exit code %d, %v: %q", code, err, stderr)
	}
	for _, args := range []string{"allow --sideways k", "allow --sideways k -- --json", "allow --sideways --json=false", "allow --json --sideways --json=no"} {
		if _, _, stderr := commandtest.Call(t, strings.Fields(args)...); !strings.HasPrefix(stderr, "pglimit: unknown flag") && !strings.Contains(args, "=no") || strings.Contains(args, "=no") && !strings.HasPrefix(stderr, "{") {
			t.Errorf("%s: stderr %q", args, stderr)
		}
	}
}
