package commands_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/must"
)

// mixedLog writes a log with lines of all formats: seven requests, a message of the server
// and a line that ends too early.
func mixedLog(t *testing.T) string {
	t.Helper()
	const caddy = `{"level":"info","ts":1779012303.25,"request":{"remote_ip":"192.0.2.1","method":"GET","uri":"/a?b","headers":{"X-Api-Key":["k1"]}},"user_id":"","status":200}` + "\n"
	text := `192.0.2.1 - alice [17/May/2026:10:05:03 +0000] "GET /a?b HTTP/2.0" 304 -` + "\n" +
		strings.Repeat(caddy, 3) + strings.ReplaceAll(caddy, "k1", "k2") +
		`{"time_iso8601":"2026-05-17T10:05:04+00:00","remote_addr":"192.0.2.2","remote_user":"alice","request":"GET /a HTTP/1.1","http_x_api_key":"k1"}` + "\n" +
		`{"msec":"1779012304.100","remote_addr":"192.0.2.2","remote_user":"bob","request":"GET /c HTTP/1.1"}` + "\n" +
		`{"level":"info","ts":1779012300,"msg":"server running"}` + "\n" + `{"level":` + "\n"
	file := filepath.Join(t.TempDir(), "access.log")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestReplayKey(t *testing.T) {
	t.Parallel()
	log := mixedLog(t)
	for key, want := range map[string]struct{ requests, keys, denied, bad int }{
		"remote_addr":               {7, 2, 5, 2},
		"user":                      {3, 2, 1, 6},
		"path":                      {7, 2, 5, 2},
		"X-Api-Key":                 {5, 2, 3, 4},
		"request.headers.X-Api-Key": {4, 2, 2, 5},
	} {
		var report struct {
			Requests   int
			Keys       int
			BadLines   int `json:"bad_lines"`
			Candidates []struct{ Denied int }
		}
		code, stdout, stderr := commandtest.Call(t, "replay", "--limit", "1", "--period", "1h", "--json", "--key", key, log)
		decode(t, stdout, &report)
		if code != 0 || report.Requests != want.requests || report.Keys != want.keys || report.BadLines != want.bad || report.Candidates[0].Denied != want.denied {
			t.Errorf("%s: exit code %d, %+v, want %+v; %s", key, code, report, want, stderr)
		}
	}
	_, _, stderr := commandtest.Call(t, "replay", "--limit", "1", log)
	if want := "pglimit: line 8: no remote_addr: skipped\npglimit: line 9: begins with { but is not a JSON object: skipped\n"; stderr != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	for key, want := range map[string]string{
		"X-None":          "none of its 8 requests has the field X-None: the first: a line in the common or combined format has no X-None: it has remote_addr, user, ",
		"a..b":            `--key: "a..b" has a dot without a name`,
		" user":           `--key: " user" has spaces`,
		"request.headers": "none of its 8 requests has the field request.headers: the first: a line in the common",
	} {
		if code, stdout, stderr := commandtest.Call(t, "replay", "--limit", "1", "--key", key, log); code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, stderr %q, want %q", key, code, stdout, stderr, want)
		}
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

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
	must.Succeed(t, os.WriteFile(file, []byte(text.String()), 0o600))
	return file
}

func TestReplaySuggest(t *testing.T) {
	t.Parallel()
	log := busyLog(t)
	code, stdout, stderr := commandtest.Call(t, "replay", "--suggest", "--policy", "api", log)
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	commandtest.Golden(t, stdout, "suggest.txt")
	var all replay.Suggestions
	commandtest.Decode(t, &all, "replay", "--suggest", "--json", log)
	if len(all.Suggestions) != 3 || all.Keys != 1201 || all.Suggestions[1].Policy.Name != "cli-1m" {
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
		"--suggest --policy UPPER":     `Name "UPPER"`,
		"--suggest --period 0":         "Period 0s",
		"--suggest=false":              "--limit is missing",
		"":                             "--limit is missing",
	} {
		if code, stdout, stderr := commandtest.Call(t, append(append([]string{"replay"}, strings.Fields(args)...), "no/such.log")...); code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %q", args, code, stdout, stderr, want)
		}
	}
}
