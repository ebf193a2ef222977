package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file in testdata.
func golden(t *testing.T, got string, path ...string) {
	t.Helper()
	file := filepath.Join(append([]string{"testdata"}, path...)...)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; make it with go test ./cmd/pglimit -update", err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("%s differs; if that is meant, go test ./cmd/pglimit -update. Got:\n%s", file, got)
	}
}

// commands returns every command, as what is typed after "pglimit".
func commands(c *cobra.Command) (all [][]string) {
	all = append(all, strings.Fields(c.CommandPath())[1:])
	for _, sub := range c.Commands() {
		all = append(all, commands(sub)...)
	}
	return all
}

// TestGoldenHelp holds every command's help to a file, so that a change of it
// is seen, and finds in each a long text and an example.
func TestGoldenHelp(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	root, _ := newRoot()
	addCompletion(root)
	for _, args := range commands(root) {
		if len(args) > 0 && args[0] == "help" {
			continue // cobra's own, about the others
		}
		code, stdout, stderr := call(t, append(args, "--help")...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Examples:\n") || !strings.Contains(stdout, "--json") {
			t.Errorf("%q: exit code %d, stderr %q; want an example and --json in it: %q", args, code, stderr, stdout)
		}
		name := strings.Join(append([]string{"pglimit"}, args...), "-") + ".txt"
		seen[name] = true
		golden(t, stdout, "help", name)
	}
	files, err := os.ReadDir(filepath.Join("testdata", "help"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("testdata/help/%s is of no command: remove it", f.Name())
		}
	}
}

// TestCompletion: the scripts are there, and values complete.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, stderr := call(t, "completion", shell)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "pglimit") {
			t.Errorf("%s: exit code %d, stderr %q", shell, code, stderr)
		}
	}
	for _, verb := range []string{"allow", "check", "fill", "refund", "wait", "reset", "block", "unblock"} {
		code, stdout, _ := call(t, "__complete", verb, "--algorithm", "sliding")
		if code != 0 || !strings.HasSuffix(stdout, "\nsliding_window_counter\nsliding_window_log\n:4\n") {
			t.Errorf("%s --algorithm sliding: exit code %d, %q", verb, code, stdout)
		}
		if code, stdout, _ := call(t, "__complete", verb, ""); code != 0 || !strings.HasSuffix(stdout, ":4\n") { // no files
			t.Errorf("%s: exit code %d, %q", verb, code, stdout)
		}
	}
	for _, verb := range []string{"allow", "check", "fill", "refund", "wait"} {
		if code, stdout, _ := call(t, "__complete", verb, "--calendar", ""); code != 0 || stdout != "hour\nday\nweek\nmonth\n:4\n" {
			t.Errorf("%s --calendar: exit code %d, %q", verb, code, stdout)
		}
		if code, stdout, _ := call(t, "__complete", verb, "--durability", ""); code != 0 || stdout != "durable\nrelaxed\n:4\n" {
			t.Errorf("%s --durability: exit code %d, %q", verb, code, stdout)
		}
	}
}
