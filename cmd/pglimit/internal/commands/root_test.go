package commands_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/must"
)

// commandLines returns every command as the words after "pglimit".
func commandLines(c *cobra.Command) (all [][]string) {
	all = append(all, strings.Fields(c.CommandPath())[1:])
	for _, sub := range c.Commands() {
		all = append(all, commandLines(sub)...)
	}
	return all
}

// TestHelp compares every command's help with a golden file. Each help must have an
// example.
func TestHelp(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	root := commands.NewRoot(&connect.Database{})
	commands.AddCompletion(root)
	for _, args := range commandLines(root) {
		if len(args) > 0 && args[0] == "help" {
			continue // help is cobra's
		}
		code, stdout, stderr := commandtest.Call(t, append(args, "--help")...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Examples:\n") || !strings.Contains(stdout, "--json") {
			t.Errorf("%q: exit code %d, stderr %q; want an example and --json in it: %q", args, code, stderr, stdout)
		}
		name := strings.Join(append([]string{"pglimit"}, args...), "-") + ".txt"
		seen[name] = true
		commandtest.Golden(t, stdout, "help", name)
	}
	files := must.OK(os.ReadDir(filepath.Join("testdata", "help")))(t)
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("testdata/help/%s belongs to no command: remove it", f.Name())
		}
	}
}

// TestCompletion: each shell has a script, and flag values are completed.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, stderr := commandtest.Call(t, "completion", shell)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "pglimit") {
			t.Errorf("%s: exit code %d, stderr %q", shell, code, stderr)
		}
	}
	for i, verb := range []string{"allow", "allow-up-to", "check", "charge", "refund", "wait", "top", "why", "find", "reset", "block", "unblock", "forget"} {
		also := ""
		if i >= 6 { // of keys
			also = "attempts\nconcurrency\nbalance\n"
		}
		code, stdout, _ := commandtest.Call(t, "__complete", verb, "--algorithm", "sliding")
		if code != 0 || !strings.HasSuffix(stdout, "\nsliding_window_counter\nsliding_window_log\n"+also+":4\n") {
			t.Errorf("%s --algorithm sliding: exit code %d, %q", verb, code, stdout)
		}
		if code, stdout, _ := commandtest.Call(t, "__complete", verb, ""); code != 0 || !strings.HasSuffix(stdout, ":4\n") { // no files
			t.Errorf("%s: exit code %d, %q", verb, code, stdout)
		}
	}
	for _, verb := range []string{"allow", "check", "charge", "refund", "wait"} {
		if code, stdout, _ := commandtest.Call(t, "__complete", verb, "--calendar", ""); code != 0 || stdout != "hour\nday\nweek\nmonth\nquarter\nyear\n:4\n" {
			t.Errorf("%s --calendar: exit code %d, %q", verb, code, stdout)
		}
		if code, stdout, _ := commandtest.Call(t, "__complete", verb, "--durability", ""); code != 0 || stdout != "durable\nrelaxed\n:4\n" {
			t.Errorf("%s --durability: exit code %d, %q", verb, code, stdout)
		}
	}
}

// TestAlgorithmDefault: every command that decides has the same default, so
// that all find the same row of a key. wait differs: other algorithms have no queue.
// Commands that look for rows have none.
func TestAlgorithmDefault(t *testing.T) {
	t.Parallel()
	root := commands.NewRoot(&connect.Database{})
	with := 0
	for _, cmd := range root.Commands() {
		flag := cmd.Flags().Lookup("algorithm")
		if flag == nil {
			continue
		}
		with++
		want := "token_bucket"
		switch cmd.Name() {
		case "wait":
			want = "leaky_bucket_queue"
		case "top", "why", "find", "block", "unblock", "reset", "forget":
			want = ""
		}
		if flag.DefValue != want || flag.Value.String() != want {
			t.Errorf("%s: --algorithm is %s by default, want %s", cmd.Name(), flag.DefValue, want)
		}
	}
	if with < 15 {
		t.Errorf("only %d commands have --algorithm", with)
	}
}

// TestDurationsInDays: every flag for a duration accepts days.
func TestDurationsInDays(t *testing.T) {
	seen := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			seen++
			if err := f.Value.Set("1d12h"); err != nil || f.Value.String() != "36h" {
				t.Errorf("%s --%s 1d12h: %v, %v; use cli.DurationVar", cmd.CommandPath(), f.Name, f.Value, err)
			}
		})
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(commands.NewRoot(&connect.Database{}))
	if seen < 25 {
		t.Errorf("only %d flags for a duration", seen)
	}
	t.Setenv("DATABASE_URL", "")
	for args, want := range map[string]string{
		"block k soon":                          `DURATION is "soon": use a number and a unit, such as`,
		"block k 30d":                           "set DATABASE_URL",
		"allow --limit 1 --period 30 k":         `--period is "30": use a number and a unit`,
		"wait --limit 1 --timeout 1d2 k":        `--timeout is "1d2": use a number`,
		"allow --limit 1 --block-for 999999d k": `--block-for is "999999d": too long`,
		"allow --limit 1 --period 30d k":        "set DATABASE_URL",
	} {
		if code, _, stderr := commandtest.Call(t, strings.Fields(args)...); code != cli.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s", args, code, stderr)
		}
	}
}
