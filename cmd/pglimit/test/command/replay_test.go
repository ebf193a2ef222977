package command

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// invented returns a log: lines requests of a few clients within an hour, not quite in order
// of time. Each line whose number rubbish divides is no line of a log.
func invented(lines, rubbish int) string {
	random := rand.New(rand.NewPCG(7, uint64(lines)))
	start := time.Date(2026, 5, 17, 10, 0, 0, 0, time.UTC)
	clients := []string{"192.0.2.1", "192.0.2.2", "198.51.100.7", "203.0.113.9", "2001:db8::7", "host.example.org"}
	var log strings.Builder
	for i := range lines {
		if rubbish > 0 && i%rubbish == rubbish-1 {
			log.WriteString("\x00\xff not a line of a log \"\n")
			continue
		}
		at := start.Add(time.Duration(i)*time.Hour/time.Duration(lines) + time.Duration(random.IntN(20)-10)*time.Second)
		fmt.Fprintf(&log, "%s - - [%s] \"GET /%d?q=\\\"x\\\" HTTP/1.1\" 200 %d \"-\" \"agent\"\n",
			clients[random.IntN(random.IntN(len(clients))+1)], at.Format("02/Jan/2006:15:04:05 -0700"), i, random.IntN(9999))
	}
	return log.String()
}

func logFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must.OK(w.Write([]byte(text)))(t)
	must.Succeed(t, w.Close())
	return b.String()
}

// TestReplayAgrees: memory and SQL report the same for every algorithm, and for several
// candidates. SQL leaves no rows. A file, a compressed one and standard input give the
// same report. A janitor sweeps meanwhile; by its clock all rows from the log's time have
// expired.
func TestReplayAgrees(t *testing.T) {
	t.Parallel()
	log := invented(1000, 10)
	plain := logFile(t, "access.log", log)
	zipped := logFile(t, "access.log", packed(t, log)) // recognized by its content
	address := testworld.NewDatabase(t)
	testworld.SweepOften(t, testworld.Connect(t, address))
	for _, flags := range []string{
		"--algorithm leaky_bucket", "--algorithm leaky_bucket --tick 5s", "--algorithm leaky_bucket_queue",
		"--algorithm token_bucket --burst 20", "--algorithm gcra --block-for 3m",
		"--algorithm fixed_window", "--algorithm fixed_window --aligned",
		"--algorithm sliding_window_counter", "--algorithm sliding_window_log --cost 2",
		"--candidate limit=5 --candidate limit=5,cost=2", // of one algorithm and name, but separate
		"--candidate algorithm=leaky_bucket_queue,limit=4,burst=2 --candidate algorithm=fixed_window,limit=5,block_for=3m",
	} {
		args := append(strings.Fields("replay --json --limit 5 --period 1m "+flags), plain)
		code, inMemory, stderr := testworld.Pglimit(t, "", args...)
		if code != 0 || !strings.Contains(stderr, "and 97 more lines") || !strings.Contains(inMemory, `"bad_lines": 100`) || strings.Contains(inMemory, `"denied": 0,`) {
			t.Fatalf("%s: exit code %d: %s %s", flags, code, inMemory, stderr)
		}
		if code, inSQL, stderr := testworld.Pglimit(t, "", append(args, "--database-url", address)...); code != 0 || inSQL != inMemory {
			t.Errorf("%s: by SQL, exit code %d: %s\nin memory: %s\n%s", flags, code, inSQL, inMemory, stderr)
		}
		args[len(args)-1] = zipped
		if code, got, _ := testworld.Pglimit(t, "", args...); code != 0 || got != inMemory {
			t.Errorf("%s: packed, exit code %d: %s", flags, code, got)
		}
		args[len(args)-1] = "-"
		c := testworld.Command(t, "", args...)
		c.Stdin = strings.NewReader(log)
		if got, err := c.Output(); err != nil || string(got) != inMemory {
			t.Errorf("%s: standard input, %v: %s", flags, err, got)
		}
	}
	testworld.NoRows(t, testworld.Connect(t, address))
}

// TestReplayText compares the text report with a file.
func TestReplayText(t *testing.T) {
	t.Parallel()
	code, got, stderr := testworld.Pglimit(t, "", "replay", "--limit", "3", "--period", "1m", "--algorithm", "sliding_window_log", logFile(t, "a.log", invented(300, 100)))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	commandtest.Golden(t, got, "replay.golden")
}

// TestReplaySuggestedPolicies: what --suggest prints loads as it is, and replaying the stored
// policies denies what it said. A policy in shadow mode is replayed as if it were enforced.
func TestReplaySuggestedPolicies(t *testing.T) {
	t.Parallel()
	database, log := testworld.NewDatabase(t), logFile(t, "a.log", invented(3000, 0))
	args := []string{"replay", "--suggest", "--policy", "api", log}
	code, text, stderr := testworld.Pglimit(t, "", args...)
	_, pasted, found := strings.Cut(text, "\nas a file for `pglimit policy import`:\n\n")
	if code != 0 || !found {
		t.Fatalf("exit code %d: %s %s", code, text, stderr)
	}
	if code, out, stderr := testworld.Pglimit(t, database, "policy", "import", "--yes", logFile(t, "limits.yaml", pasted)); code != 0 || !strings.Contains(out, "3 changes made") {
		t.Fatalf("import: exit code %d: %s %s\n%s", code, out, stderr, pasted)
	}
	testworld.Pglimit(t, database, "policy", "set", "strict", "--limit", "1", "--period", "1h", "--shadow")
	var all replay.Suggestions
	testworld.PglimitJSON(t, &all, "", args...)
	var report replay.Report
	testworld.PglimitJSON(t, &report, database, "replay", "--policy", "api-1s", "--candidate", "policy=api-1m", "--candidate", "policy=api-1h", log)
	for i, s := range all.Suggestions {
		if c := report.Candidates[i]; c.Policy != s.Policy || c.Denied != s.Denied {
			t.Errorf("suggested %+v, %d denied; replayed %+v, %d denied", s.Policy, s.Denied, c.Policy, c.Denied)
		}
	}
	testworld.PglimitJSON(t, &report, database, "replay", "--policy", "strict", log)
	strict := report.Candidates[0]
	if strict.Denied < report.Requests/2 {
		t.Errorf("a policy in shadow mode denied %d of %d", strict.Denied, report.Requests)
	}
	code, inSQL, stderr := testworld.Pglimit(t, "", "replay", "--json", "--policy", "strict", "--database-url", database, log)
	if want := fmt.Sprintf(`"denied": %d,`, strict.Denied); code != 0 || !strings.Contains(inSQL, want) {
		t.Errorf("by SQL: exit code %d, %s, want %s\n%s", code, inSQL, want, stderr)
	}
	for flags, want := range map[string]string{
		"--policy nosuch":                     `--policy is "nosuch": neither the database nor a program has such a policy`,
		"--limit 3 --candidate policy=nosuch": `--candidate "policy=nosuch": --policy is "nosuch": neither the database nor a program has such a policy`,
		"--policy api-1s --cost 0":            "cost 0",
		"--policy api-1s --limit 3":           "leave --limit out for the policy of that name in the database",
	} {
		if code, out, stderr := testworld.Pglimit(t, database, append(append([]string{"replay"}, strings.Fields(flags)...), "no/such.log")...); code != 2 || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, want %q", flags, code, stderr, want)
		}
	}
	if code, _, stderr := testworld.Pglimit(t, "", "replay", "--policy", "api-1s", log); code != 2 || !strings.Contains(stderr, "no database is named") {
		t.Errorf("without a database: exit code %d, %q", code, stderr)
	}
}

// TestReplayErrors: a file that is no log is distinguished from a log with bad lines.
func TestReplayErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, want string }{
		{logFile(t, "a", strings.Repeat("no\n", 5)), "none of its 5 lines"},
		{logFile(t, "a", ""), "none of its 0 lines"},
		{filepath.Join(t.TempDir(), "missing"), "missing"},
		{t.TempDir(), "directory"},
		{logFile(t, "a", "\x1f\x8bbroken"), "gzip"},
		{logFile(t, "a", packed(t, invented(1000, 0))[:2000]), "unexpected EOF"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, "", "replay", "--limit", "3", c.file)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("exit code %d, stdout %q, stderr %q; want %q", code, stdout, stderr, c.want)
		}
	}
}

// TestReplayKeysCannotDriveATerminal: control characters in a client's name are quoted.
func TestReplayKeysCannotDriveATerminal(t *testing.T) {
	t.Parallel()
	evil := "\x1b]0;owned\a\x1b[2J"
	line := evil + ` - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 200 1` + "\n"
	code, stdout, stderr := testworld.Pglimit(t, "", "replay", "--limit", "1", logFile(t, "a.log", line+line))
	if code != 0 || strings.Contains(stdout+stderr, "\x1b") || !strings.Contains(stdout, `"\x1b]0;owned\a\x1b[2J"`) {
		t.Errorf("replay: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	c := testworld.Command(t, testworld.NewDatabase(t), "allow", "--limit", "1", "-")
	c.Stdin = strings.NewReader(evil + "\n" + evil + "\tno-number\n")
	out, _ := c.CombinedOutput()
	if strings.Contains(string(out), "\x1b") || !strings.Contains(string(out), `"\x1b]0;owned\a\x1b[2J"`) {
		t.Errorf("allow -: %q", out)
	}
}

// awaitReplay waits until a replay decides in that database.
func awaitReplay(t *testing.T, address string) {
	t.Helper()
	pool := testworld.Connect(t, address)
	testworld.Eventually(t, "it decides", func(ctx context.Context) (bool, error) {
		var n int
		err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'pglimit' AND query LIKE '%INSERT INTO pglimit_token_bucket%'`).Scan(&n)
		return n > 0, err
	})
}

// TestReplayInterrupted: Ctrl-C during a replay in SQL leaves no rows.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	file := logFile(t, "long.log", invented(300_000, 0))
	c := startCommand(t, "", "replay", "--limit", "3", "--database-url", address, file)
	awaitReplay(t, address)
	c.interrupt(t)
	if code, stdout := c.end(t); code != 130 || stdout != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, &c.stderr)
	}
	testworld.NoRows(t, testworld.Connect(t, address))
}

// TestReplayKilled: kill -9 leaves no rows either.
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	c := startCommand(t, "", "replay", "--limit", "3", "--database-url", address, logFile(t, "long.log", invented(300_000, 0)))
	awaitReplay(t, address)
	must.Succeed(t, c.Process.Kill())
	c.end(t)
	testworld.NoRows(t, testworld.Connect(t, address))
}

// TestReplayNotMigrated names the command to run.
func TestReplayNotMigrated(t *testing.T) {
	t.Parallel()
	code, _, stderr := testworld.Pglimit(t, "", "replay", "--limit", "3", "--database-url", testworld.EmptyDatabase(t), logFile(t, "a.log", invented(10, 0)))
	if code != 3 || !strings.Contains(stderr, "pglimit migrate up") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
