package commands_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/must"
)

// logFile writes a log with two clients: one sends five requests in a second, the
// other one request, later.
func logFile(t *testing.T) string {
	t.Helper()
	const rest = `:00:00 +0000] "GET / HTTP/1.1" 200 1` + "\n"
	text := strings.Repeat("192.0.2.1 - - [17/May/2026:10"+rest, 5) + "192.0.2.2 - - [17/May/2026:11" + rest + "rubbish\n"
	file := filepath.Join(t.TempDir(), "access.log")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// TestReplayCandidates: the flags' policy and two more, in JSON and as text.
func TestReplayCandidates(t *testing.T) {
	t.Parallel()
	args := []string{"replay", "--limit", "3", "--period", "1m", "--cost", "2", "--candidate", "limit=4",
		"--candidate", " algorithm=leaky_bucket_queue, limit=60 ,period=1m,burst=2,cost=1,block-for=30s,policy=q", logFile(t)}
	code, stdout, stderr := commandtest.Call(t, args...)
	if code != 0 || stderr != "pglimit: line 7: no client's address at its start: skipped\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	commandtest.Golden(t, stdout, "replay.txt")
	code, stdout, _ = commandtest.Call(t, append(args, "--json")...)
	var report replay.Report
	if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil || len(report.Candidates) != 3 {
		t.Fatalf("exit code %d, %v: %s", code, err, stdout)
	}
	var got []string
	for _, c := range report.Candidates {
		p, err := json.Marshal(c.Policy)
		got = append(got, fmt.Sprint(string(p), err, c.Cost, c.Allowed, c.Delayed, c.Denied, c.KeysDenied))
	}
	if want := []string{
		`{"name":"cli","algorithm":"token_bucket","limit":3,"period":"1m"}<nil> 2 2 0 4 1`,
		`{"name":"cli","algorithm":"token_bucket","limit":4,"period":"1m"}<nil> 1 5 0 1 1`,
		`{"name":"q","algorithm":"leaky_bucket_queue","limit":60,"period":"1m","burst":2,"block_for":"30s"}<nil> 1 2 1 3 1`,
	}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestReplayCandidateErrors: errors name the field, the value and what is possible,
// before the log is opened.
func TestReplayCandidateErrors(t *testing.T) {
	t.Parallel()
	for candidate, want := range map[string]string{
		"":                                    `"" is not a field: use algorithm, aligned, anchor, block_for, burst, calendar, cost, limit, period, policy, tick, time_zone`,
		"limit=1,durability=relaxed":          `"durability" is not a field`,
		"limit=1,,burst=2":                    `"" is not a field`,
		"limit":                               "limit has no value: write limit=…",
		"limit=1,limit=2":                     "limit is given twice",
		"limit=1,block-for=1s,block_for=":     "block_for is given twice",
		"burst=3":                             "limit is missing: add a limit, such as limit=60",
		"limit=many":                          `limit is "many": use a number, such as 10`,
		"limit=1,period=60":                   `period is "60": use a number and a unit`,
		"limit=1,aligned=maybe":               `aligned is "maybe": use true or false`,
		"limit=0":                             "Limit 0: must be from 1e-9",
		"limit=NaN":                           `limit is "NaN": use a number`,
		"limit=1,algorithm=bucket":            `Algorithm "bucket": must be one of [leaky_bucket `,
		"limit=1,cost=0":                      "cost 0: ",
		"limit=1,algorithm=gcra,calendar=day": `Calendar "day": is for fixed_window only`,
		"limit=1,period=1m,policy=A":          `Name "A": must match`,
	} {
		code, stdout, stderr := commandtest.Call(t, "replay", "--limit", "1", "--candidate", "limit=2", "--candidate", candidate, "no/such.log")
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) || !strings.HasPrefix(stderr, fmt.Sprintf("pglimit: --candidate %q: ", candidate)) ||
			strings.Count(stderr, "pglimit: ") != 1 {
			t.Errorf("%q: exit code %d, stderr %q, want %q", candidate, code, stderr, want)
		}
	}
	if code, _, stderr := commandtest.Call(t, "replay", "--limit", "1", "--candidate", "limit=2", "--candidate", "limit=2", "--candidate", "limit=2", "no/such.log"); code != cli.ExitUsage ||
		!strings.Contains(stderr, "--candidate is given 3 times: use it at most 2") {
		t.Errorf("a third: exit code %d, %q", code, stderr)
	}
	if code, _, stderr := commandtest.Call(t, "replay", "--limit", "1", "--cost", "0", "no/such.log"); code != cli.ExitUsage || !strings.Contains(stderr, "cost 0") {
		t.Errorf("the flags: exit code %d, %q", code, stderr)
	}
}

// TestReplayBounds: a log above a bound is an error that names the line and the flag.
func TestReplayBounds(t *testing.T) {
	t.Parallel()
	log := logFile(t)
	for flag, want := range map[string]string{
		"--max-clients=1":   log + ": line 6: more than 1 clients: raise --max-clients",
		"--max-requests=5":  log + ": line 6: more than 5 requests: raise --max-requests",
		"--max-clients=0":   "--max-clients is 0: must be from 1 to 2147483647",
		"--max-requests=-1": "--max-requests is -1: must be from 1 to 2147483647",
	} {
		if code, stdout, stderr := commandtest.Call(t, "replay", "--limit", "3", flag, log); code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", flag, code, stdout, stderr)
		}
	}
	if code, _, stderr := commandtest.Call(t, "replay", "--limit", "3", "--max-clients=2", "--max-requests=6", log); code != 0 {
		t.Errorf("at the bounds: exit code %d, %q", code, stderr)
	}
}

// TestReplayTimes: --since and --until cut the log. A date is a whole day of it.
func TestReplayTimes(t *testing.T) {
	t.Parallel()
	log := logFile(t) // five requests at 10:00 and one at 11:00
	for _, c := range []struct {
		since, until      string
		requests, leftOut int
	}{
		{"2026-05-17", "", 6, 0},
		{"", "2026-05-17", 6, 0},
		{"2026-05-17 10:00:01", "", 1, 5},
		{"2026-05-17T12:30:00+02:00", "", 1, 5},
		{"", "2026-05-17 11:00", 5, 1},
		{"2026-05-17T11:00:00Z", "2027-01-01", 1, 5},
		{"2026-05-17 10:00", "2026-05-17 11:01", 6, 0},
	} {
		var report replay.Report
		commandtest.Decode(t, &report, "replay", "--json", "--limit", "3", "--since", c.since, "--until", c.until, log)
		if report.Requests != c.requests || report.LeftOut != c.leftOut {
			t.Errorf("%+v: %d requests, %d left out", c, report.Requests, report.LeftOut)
		}
	}
	if _, stdout, _ := commandtest.Call(t, "replay", "--limit", "3", "--since", "2026-05-17 10:30", log); !strings.Contains(stdout, "\nleft out   ") {
		t.Errorf("the text: %s", stdout)
	}
	var all replay.Suggestions
	if commandtest.Decode(t, &all, "replay", "--suggest", "--json", "--until", "2026-05-17 10:30", log); all.Requests != 5 || all.LeftOut != 1 {
		t.Errorf("suggested from %+v", all.Summary)
	}
	for flags, want := range map[string]string{
		"--limit=3 --since=soon":                          `--since is "soon": use a date such as 2026-05-17, or a time`,
		"--limit=3 --until=soon":                          `--until is "soon": use a date such as`,
		"--limit=3 --since=2026-05-18 --until=2026-05-17": `--until is "2026-05-17": that is not after --since 2026-05-18`,
		"--limit=3 --since=2026-05-18":                    "none of its 6 requests is in the time to replay: they are from 2026-05-17 10:00:00 to 2026-05-17 11:00:00 UTC",
		"--suggest --until=2026-05-16":                    "none of its 6 requests is in the time to replay",
	} {
		if code, stdout, stderr := commandtest.Call(t, append([]string{"replay", log}, strings.Fields(flags)...)...); code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %q", flags, code, stdout, stderr, want)
		}
	}
}

// files returns the names of the files in the directory of name.
func files(t *testing.T, name string) (names []string) {
	t.Helper()
	all := must.OK(os.ReadDir(filepath.Dir(name)))(t)
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names
}

// TestReplayPage: --html writes the page in addition to the report, replaces an
// older page atomically, and leaves no other file.
func TestReplayPage(t *testing.T) {
	t.Parallel()
	log, page := logFile(t), filepath.Join(t.TempDir(), "report.html")
	write := func(limit string) (text string) {
		_, want, _ := commandtest.Call(t, "replay", "--limit", limit, log)
		code, stdout, stderr := commandtest.Call(t, "replay", "--limit", limit, "--html", page, log)
		if code != 0 || stdout != want || !strings.HasSuffix(stderr, "\npglimit: the page is in "+page+"\n") {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		all, err := os.ReadFile(page)
		text = string(all)
		if err != nil || !strings.HasPrefix(text, "<!DOCTYPE html>") || !strings.Contains(text, "<title>access.log: ") ||
			!strings.Contains(text, ">"+limit+" per 1m<") || !strings.HasSuffix(text, "</html>\n") {
			t.Errorf("%v: %.200s", err, text)
		}
		if got := files(t, page); !slices.Equal(got, []string{"report.html"}) {
			t.Errorf("there are %q", got)
		}
		return text
	}
	before := write("3")
	old := must.OK(os.Open(page))(t)
	defer old.Close()
	write("4")
	if got, err := io.ReadAll(old); err != nil || string(got) != before {
		t.Errorf("a reader of the old page got %d bytes of %d, %v", len(got), len(before), err)
	}
}

// TestReplayPageThroughALink: the target of a link is replaced, not the link.
func TestReplayPageThroughALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page, link := filepath.Join(dir, "page.html"), filepath.Join(dir, "link.html")
	must.Succeed(t, os.WriteFile(page, nil, 0o600))
	must.Succeed(t, os.Symlink("page.html", link))
	code, _, stderr := commandtest.Call(t, "replay", "--limit", "3", "--html", link, logFile(t))
	text, err := os.ReadFile(page)
	if at, _ := os.Readlink(link); code != 0 || at != "page.html" || err != nil || len(text) == 0 {
		t.Errorf("exit code %d, %q; the link is to %q, the page has %d bytes, %v", code, stderr, at, len(text), err)
	}
}

// TestReplayPageErrors: errors come before the log is read, and change no file.
func TestReplayPageErrors(t *testing.T) {
	t.Parallel()
	log, dir := logFile(t), t.TempDir()
	inLog := filepath.Join(log, "page.html")
	for _, c := range []struct{ page, log, want string }{
		{"-", "no/such.log", "--html is -: name a file"},
		{"", "no/such.log", "--html is empty: name a file"},
		{dir, "no/such.log", "--html is " + dir + ": that is not a regular file"},
		{os.DevNull, "no/such.log", "--html is " + os.DevNull + ": that is not a regular file"},
		{filepath.Join(dir, "none", "page.html"), "no/such.log", "cannot write there: "},
		{inLog, "no/such.log", "not a directory"},
		{log, log, "that is the log"},
		{filepath.Join(dir, "page.html"), "no/such.log", "no/such.log"},
	} {
		code, stdout, stderr := commandtest.Call(t, "replay", "--limit", "3", "--html", c.page, c.log)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "skipped") {
			t.Errorf("--html %q: exit code %d, stdout %q, stderr %q, want %q", c.page, code, stdout, stderr, c.want)
		}
	}
	if got := append(files(t, log), files(t, filepath.Join(dir, "x"))...); !slices.Equal(got, []string{"access.log"}) {
		t.Errorf("there are %q", got)
	}
}

// TestReplayInterruptedLeavesThePage: the old page stays, and no other file is
// left.
func TestReplayInterruptedLeavesThePage(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.html")
	must.Succeed(t, os.WriteFile(page, []byte("before"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr strings.Builder
	code := commands.Run(ctx, []string{"replay", "--limit", "3", "--html", page, logFile(t)}, strings.NewReader(""), &stdout, &stderr)
	if text, err := os.ReadFile(page); code == 0 || stdout.Len() > 0 || err != nil || string(text) != "before" || len(files(t, page)) != 1 {
		t.Errorf("exit code %d, %q; the page has %q, %v; there are %q", code, &stderr, text, err, files(t, page))
	}
}
