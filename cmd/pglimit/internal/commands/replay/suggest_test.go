package replay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/internal/replay"
)

// busyLog writes a log of 1,200 clients over two hours. One of them sends 300 requests in
// a second.
func busyLog(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	const rest = ` - - [17/May/2026:1%d:%02d:%02d +0000] "GET / HTTP/1.1" 200 1` + "\n"
	for i := range 1200 {
		for n := range 1 + i%12 {
			fmt.Fprintf(&text, "192.0.2.%d.%d"+rest, i/100, i%100, i%2, i%60, n)
		}
	}
	for range 300 {
		fmt.Fprintf(&text, "203.0.113.9"+rest, 2, 0, 7)
	}
	file := filepath.Join(t.TempDir(), "access.log")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReplaySuggest(t *testing.T) {
	t.Parallel()
	log := busyLog(t)
	code, stdout, stderr := commandtest.Call(t, "replay", "--suggest", "--name", "api", log)
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	commandtest.Golden(t, stdout, "suggest.txt")
	var all replay.Suggestions
	commandtest.Decode(t, &all, "replay", "--suggest", "--json", log)
	if len(all.Suggestions) != 3 || all.Keys != 1201 || all.Suggestions[1].Policy.Name != "cli" {
		t.Fatalf("%+v", all)
	}
	// The flags do what the suggestion says.
	for _, s := range all.Suggestions {
		var report replay.Report
		commandtest.Decode(t, &report, append(append([]string{"replay", "--json"}, strings.Fields(s.Flags)...), log)...)
		if c := report.Candidates[0]; c.Denied != s.Denied || c.KeysDenied != s.KeysDenied || s.KeysDenied != 1 || c.Policy != s.Policy {
			t.Errorf("%s: %+v, but the replay %+v", s.Flags, s, c)
		}
	}
	commandtest.Decode(t, &all, "replay", "--suggest", "--json", "--period", "1d", log)
	if len(all.Suggestions) != 1 || all.Suggestions[0].Period != 86400 {
		t.Errorf("%+v", all)
	}
	for args, want := range map[string]string{
		"--suggest --limit 3":          "--limit does not go with --suggest",
		"--suggest --burst 3":          "--burst does not go with --suggest",
		"--suggest --html x.html":      "--html does not go with --suggest",
		"--suggest --candidate limit=": "--candidate does not go with --suggest",
		"--suggest --embedded":         "--embedded does not go with --suggest",
		"--suggest --name UPPER":       `Name "UPPER"`,
		"--suggest --period 0":         "Period 0s",
		"--suggest=false":              "--limit is missing",
		"":                             "--limit is missing",
	} {
		if code, stdout, stderr := commandtest.Call(t, append(append([]string{"replay"}, strings.Fields(args)...), "no/such.log")...); code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %q", args, code, stdout, stderr, want)
		}
	}
}
