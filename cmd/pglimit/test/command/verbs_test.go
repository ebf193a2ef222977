package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestCommandVerbsGolden runs command lines one after the other on one database, and
// compares their answers, as JSON and as text, with a file.
func TestCommandVerbsGolden(t *testing.T) {
	t.Parallel()
	asJSON, asText := testworld.NewDatabase(t), testworld.NewDatabase(t)
	var got strings.Builder
	for _, line := range []string{
		"check --algorithm fixed_window --limit 5 --period 1000h alice",
		"allow --algorithm fixed_window --limit 5 --period 1000h --cost 2 alice",
		"charge --algorithm fixed_window --limit 5 --period 1000h --cost 9 alice",
		"check --algorithm fixed_window --limit 5 --period 1000h alice",
		"check --algorithm fixed_window --limit 5 --period 1000h --cost 0 alice",
		"allow --algorithm fixed_window --limit 5 --period 1000h alice",
		"allow --algorithm fixed_window --limit 5 --period 1000h --cost 6 alice",
		"refund --algorithm fixed_window --limit 5 --period 1000h --cost 3 alice",
		"block --algorithm fixed_window alice 2h",
		"check --algorithm fixed_window --limit 5 --period 1000h --cost 0 alice",
		"unblock --algorithm fixed_window alice",
		"unblock --algorithm fixed_window alice",
		"unblock alice",
		"check --algorithm fixed_window --limit 5 --period 1000h --cost 3 alice",
		"reset --algorithm fixed_window --policy cli alice",
		"reset --algorithm fixed_window --policy cli alice",
		"check --algorithm fixed_window --limit 5 --period 1000h --cost 5 alice",
		"block --policy other alice 3h",
		"block --policy other alice 2h",
		"unblock --policy other alice",
		"wait --limit 1 --period 1000h --burst 2 mail",
		"wait --limit 1 --period 1000h --burst 2 --timeout 1m mail",
		"wait --limit 1 --period 1000h --burst 2 --cost 3 mail",
		"janitor --once",
	} {
		// The same on two databases, because each line changes the rows.
		code, stdout, _ := testworld.Pglimit(t, asJSON, strings.Fields(line+" --json")...)
		textCode, text, _ := testworld.Pglimit(t, asText, strings.Fields(line)...)
		if code != textCode {
			t.Errorf("%s: exit code %d with --json, %d without", line, code, textCode)
		}
		fmt.Fprintf(&got, "$ pglimit %s\n%s%s(exit code %d)\n\n", line, duration.ReplaceAllString(text, "TIME"), withoutTimes(t, stdout), code)
	}
	commandtest.Golden(t, got.String(), "verbs.golden")
}

// duration matches a duration of an answer.
var duration = regexp.MustCompile(`\b([\d.]+(h|m|s|ms))+\b`)

// withoutTimes replaces every time that is neither 0 nor null by the same word.
func withoutTimes(t *testing.T, text string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Errorf("%v: %q", err, text)
		return text
	}
	for name, value := range fields {
		if strings.HasSuffix(name, "_after_s") || name == "delay_s" {
			if v := string(value); v != "0" && v != "null" {
				fields[name] = json.RawMessage(`"TIME"`)
			}
		}
		if name == "level" || name == "remaining" { // a bucket leaks meanwhile
			var units float64
			if err := json.Unmarshal(value, &units); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			fields[name] = json.RawMessage(fmt.Sprintf("%.3f", units))
		}
	}
	out, err := json.MarshalIndent(fields, "", "  ")
	if err != nil {
		t.Error(err)
	}
	return string(out) + "\n"
}

// TestCommandSlots: slots are held until they are released, --wait waits for one, and top, why,
// find and changes of keys know them.
func TestCommandSlots(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	run := func(code int, want string, args ...string) string {
		t.Helper()
		got, stdout, stderr := testworld.Pglimit(t, database, args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d: %s%s; want %d and %s", args, got, stdout, stderr, code, want)
		}
		return stdout
	}
	run(0, "", "policy", "set", "exports", "--algorithm", "concurrency", "--limit", "2", "--period", "1h")
	acquire := func(more ...string) string {
		t.Helper()
		var slot struct {
			ID    string
			Fence int64
		}
		must.Succeed(t, json.Unmarshal([]byte(run(0, "", append([]string{"acquire", "--policy", "exports", "acme", "--json"}, more...)...)), &slot))
		if slot.Fence == 0 {
			t.Errorf("%+v", slot)
		}
		return slot.ID
	}
	id := acquire("--cost", "2")
	run(1, "denied (limit)", "acquire", "--policy", "exports", "acme")
	run(0, "held       2 of 2 in 1 slot", "usage", "--policy", "exports", "acme")
	run(0, "renewed "+id, "renew", id, "--ttl", "2h")
	for _, want := range []string{"exports, concurrency: limited now", "2 held at once, each for 1h", "2 of 2 held, in 1 slot; the last ends at "} {
		run(0, want, "why", "acme")
	}
	run(0, `"level": 2`, "find", "acme", "--json")
	run(0, "acme", "top", "--by", "share", "--algorithm", "concurrency")
	run(0, "released "+id, "release", id)
	run(1, "nothing to release", "release", id)
	run(1, `"found": false`, "renew", id, "--json")
	acquire("--wait", "--ttl", "10s")
	run(0, "", "block", "--policy", "exports", "--algorithm", "concurrency", "acme", "1h")
	run(1, "denied (blocked)", "acquire", "--policy", "exports", "acme")
	run(0, "", "unblock", "acme")
	held := acquire()
	run(0, "", "reset", "acme")
	run(1, "nothing to release", "release", held)
	acquire("--cost", "2")
	run(0, "", "block", "--prefix", "ac", "1h", "--yes")
	run(1, "denied (blocked)", "acquire", "--policy", "exports", "acme")
	run(0, "", "unblock", "--prefix", "ac", "--yes")
	run(0, "", "reset", "--prefix", "ac", "--yes")
	acquire("--cost", "2")
	run(0, "", "forget", "acme", "--yes")
	acquire("--cost", "2")
	run(2, "not the ID of a Slot", "release", "x")
	run(2, "use Acquire", "allow", "--policy", "exports", "acme")
	run(0, "acquired until", "acquire", "--limit", "3", "bob") // by flags
}

// TestCommandAttempts: failures make a key wait, a ticket counts once, and the place from which
// an attempt succeeded is counted separately.
func TestCommandAttempts(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	run := func(code int, want string, args ...string) string {
		t.Helper()
		got, stdout, stderr := testworld.Pglimit(t, database, args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d: %s%s; want %d and %s", args, got, stdout, stderr, code, want)
		}
		return stdout
	}
	run(0, "", "policy", "set", "login", "--algorithm", "attempts", "--limit", "2", "--period", "1000h", "--block-for", "100h", "--block-growth", "2", "--block-max", "1000h")
	attempt := func(from string) string {
		t.Helper()
		var ticket struct {
			ID        string
			ExpiresAt time.Time `json:"expires_at"`
			Result    struct{ Level float64 }
		}
		must.Succeed(t, json.Unmarshal([]byte(run(0, "", "attempt", "--policy", "login", "--from", from, "--ttl", "10h", "alice", "--json")), &ticket))
		if lasts := time.Until(ticket.ExpiresAt); lasts < 9*time.Hour || lasts > 11*time.Hour {
			t.Errorf("%+v", ticket)
		}
		return ticket.ID
	}
	home := attempt("home")
	run(1, "denied (limit)", "attempt", "--policy", "login", "alice")
	run(0, "under way  1 attempt of 1", "usage", "--policy", "login", "alice")
	run(0, "succeeded "+home, "succeeded", home)
	run(1, "nothing to report", "succeeded", home)
	run(1, `"found": false`, "failed", home, "--json")
	run(0, "failed: 1 failure, waits after 1 more", "failed", attempt("cafe"))
	guess := attempt("cafe")
	run(0, "failed: 2 failures of 2, waits ", "failed", guess)
	run(1, "denied (blocked)", "attempt", "--policy", "login", "--from", "cafe", "alice")
	run(0, "failures   2 of 2", "usage", "--policy", "login", "alice")
	run(0, "succeeded", "succeeded", attempt("home"))
	run(1, "denied (blocked)", "check", "--policy", "login", "alice")
	run(2, "not the ID of a Ticket", "failed", "x")
	run(2, "use Attempt", "allow", "--policy", "login", "alice")
	run(2, "TTL", "attempt", "--policy", "login", "--ttl", "1ms", "alice")
	run(0, "begun until", "attempt", "--limit", "3", "bob") // by flags
	for _, want := range []string{
		"login, attempts: blocked now", "waits from 2 failures on, of 100h to 1000h", "2 of 2 failures, 0 attempts under way", "known     1 place, not counted here", "unblock --policy login",
	} {
		run(0, want, "why", "alice")
	}
	run(0, `"known_sources": 1`, "why", "alice", "--json")
	run(0, `"level": 2`, "find", "alice", "--json")
	run(0, "alice", "top", "--by", "share", "--algorithm", "attempts")
	run(0, "alice", "top", "--by", "recent")
	run(0, "blocked", "block", "--prefix", "--max", "1", "--yes", "alic", "1s") // one key with two rows
	run(0, "unblocked alice", "unblock", "alice")
	run(1, "", "unblock", "alice")
	run(0, "ok now", "why", "alice")
	held := attempt("cafe") // the count outlives the wait
	run(0, "failed: 3 failures of 2, waits 200h", "failed", held)
	run(0, "reset alice", "reset", "alice")
	run(0, "failed: 1 failure", "failed", attempt("home")) // which is no longer known
	run(0, "blocked alice", "block", "--algorithm", "attempts", "alice", "1h")
	run(1, "denied (blocked): retry after 1h", "attempt", "--policy", "login", "alice")
	run(0, "", "forget", "alice", "--yes")
	run(1, "", "find", "alice")
}

// TestCommandVerbsExitCodes: 0 allowed or done, 1 denied, 2 usage, 3 database error.
func TestCommandVerbsExitCodes(t *testing.T) {
	t.Parallel()
	address, bare := testworld.NewDatabase(t), testworld.EmptyDatabase(t)
	for _, c := range []struct {
		database, args string
		code           int
		want           string // in stderr
	}{
		{address, "check --limit 1 k", 0, ""},
		{address, "check --limit 1 --cost 2 k", 1, ""},
		{address, "check --limit 1 --cost -1 k", 2, "cost -1: must be positive"},
		{address, "charge --limit 1 --cost 0 k", 2, "Check at cost 0 reads"},
		{address, "charge --limit 1 k", 0, ""},
		{address, "refund --limit 1 --algorithm leaky_bucket_queue k", 2, "Refund on leaky_bucket_queue"},
		{address, "wait --limit 1 --algorithm gcra k", 2, "Wait on gcra"},
		{address, "block k -- -5m", 2, `DURATION is "-5m": must be above 0`},
		{address, "block k 0s", 2, `DURATION is "0s": must be above 0`},
		{address, "unblock never-seen", 1, ""},
		{address, "reset never-seen", 1, ""},
		{address, "block \xff 1h", 2, "is not valid UTF-8"},
		{address, "janitor --once --batch-size 20000", 2, "Config.BatchSize 20000"},
		{address, "janitor --once --lease 1ms", 2, "Config.Lease 1ms"},
		{bare, "check --limit 1 k", 3, "pglimit migrate up"},
		{bare, "block k 1h", 3, "pglimit migrate up"},
		{bare, "wait --limit 1 k", 3, "pglimit migrate up"},
		{bare, "janitor --once", 3, "pglimit_lease"},
		{bare, "janitor", 3, "pglimit migrate up"},
		{bare, "prove --for 1s --workers 2", 3, "pglimit migrate up"},
		{"postgres://nobody@127.0.0.1:1/none", "version", 3, "connect"},
		{"postgres://nobody@127.0.0.1:1/none", "refund --limit 1 k", 3, "connect"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, c.database, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stderr, c.want) || (stdout != "") != (code < 2) {
			t.Errorf("%s: exit code %d, want %d; stdout %q, stderr %q", c.args, code, c.code, stdout, stderr)
		}
	}
}

// started is a running command and its output.
type started struct {
	*osexec.Cmd
	stdout io.ReadCloser
	stderr bytes.Buffer
}

// startCommand starts the command.
func startCommand(t *testing.T, database string, args ...string) *started {
	t.Helper()
	s := &started{Cmd: testworld.Command(t, database, args...)}
	s.Cmd.Stderr = &s.stderr
	var err error
	if s.stdout, err = s.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, s.Start())
	return s
}

// end waits for a signalled command to end, and returns its exit code and the rest of its
// stdout.
func (s *started) end(t *testing.T) (code int, stdout string) {
	t.Helper()
	rest, err := io.ReadAll(s.stdout)
	if err != nil && s.stdout != nil && !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
	_ = s.Wait() // the exit code reports it
	return s.ProcessState.ExitCode(), string(rest)
}

func (s *started) interrupt(t *testing.T) {
	t.Helper()
	must.Succeed(t, s.Process.Signal(os.Interrupt))
}

// TestCommandWaitInterrupted: Ctrl-C gives the place back.
func TestCommandWaitInterrupted(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	l := testworld.NewLimiter(t, testworld.Connect(t, address), nil)
	p := limiter.Policy{Name: "cli", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 4}
	testworld.Must(t)(l.Allow(t.Context(), p, "k"))
	wait := startCommand(t, address, "wait", "--limit", "1", "--period", "1000h", "--burst", "4", "--cost", "2", "k")
	testworld.Eventually(t, "the command is in the queue", func(ctx context.Context) (bool, error) {
		r, err := l.Check(ctx, p, "k", 0)
		return r.Level > 2, err
	})
	wait.interrupt(t)
	code, stdout := wait.end(t)
	if code != 130 || stdout != "" || !strings.Contains(wait.stderr.String(), "the place goes back") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, &wait.stderr)
	}
	if r := testworld.Must(t)(l.Check(t.Context(), p, "k", 0)); !testworld.Near(r.Level, 1) {
		t.Errorf("the level is %v, want 1", r.Level)
	}
}

// expired inserts n rows that expired long ago into a table.
func expired(t *testing.T, address string, a limiter.Algorithm, n int) {
	t.Helper()
	then := func() time.Time { return time.Now().Add(-1000 * time.Hour) }
	l := testworld.NewLimiter(t, testworld.Connect(t, address), &limiter.Config{Now: then})
	for i := range n {
		testworld.Must(t)(l.Allow(t.Context(), limiter.Policy{Name: "old", Algorithm: a, Limit: 1, Period: time.Second}, fmt.Sprint(i)))
	}
}

// TestCommandJanitor sweeps once, and then until Ctrl-C, with one line per sweep.
func TestCommandJanitor(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	expired(t, address, limiter.GCRA, 3)
	expired(t, address, limiter.FixedWindow, 2)
	var once struct {
		Removed             int64
		ByTable             map[string]int64 `json:"by_table"`
		Kept                int64
		ReservationsExpired int64 `json:"reservations_expired"`
		HeldElsewhere       bool  `json:"held_elsewhere"`
	}
	testworld.PglimitJSON(t, &once, address, "janitor", "--once", "--batch-size", "2")
	if once.Removed != 5 || once.ByTable["pglimit_token_bucket"] != 3 || once.ByTable["pglimit_fixed_window"] != 2 || once.HeldElsewhere {
		t.Errorf("once: %+v", once)
	}

	expired(t, address, limiter.GCRA, 1)
	janitor := startCommand(t, address, "janitor", "--interval", "24h", "--json")
	line, err := bufio.NewReader(janitor.stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, &janitor.stderr)
	}
	var sweep struct {
		Level   string
		Msg     string
		Removed int64
		ByTable map[string]int64 `json:"by_table"`
	}
	if err := json.Unmarshal([]byte(line), &sweep); err != nil || sweep.Removed != 1 || sweep.ByTable["pglimit_token_bucket"] != 1 || sweep.Level != "INFO" {
		t.Errorf("the sweep's line: %q, %v", line, err)
	}
	// It has the lease, and keeps it between sweeps.
	testworld.PglimitJSON(t, &once, address, "janitor", "--once")
	if !once.HeldElsewhere {
		t.Errorf("while another janitor runs: %+v", once)
	}
	janitor.interrupt(t)
	if code, rest := janitor.end(t); code != 0 || rest != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, rest, &janitor.stderr)
	}
	testworld.PglimitJSON(t, &once, address, "janitor", "--once")
	if once.HeldElsewhere {
		t.Error("the janitor kept its lease at its end")
	}
}

// TestCommandClosedPipe: a command whose reader has gone ends in silence, with the exit
// code that shells report for SIGPIPE.
func TestCommandClosedPipe(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"janitor", "--interval", "1ms"}, // the first line has a reader
		{"demo"},
		{"migrate", "status"},
		{"playground", "--addr", "localhost:0"},
		{"replay", "--limit", "3", logFile(t, "a.log", invented(1000, 0))},
	} {
		address := testworld.NewDatabase(t)
		c := testworld.Command(t, address, args...)
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		c.Stdout, c.Stderr = writer, &stderr
		if args[0] != "janitor" {
			must.Succeed(t, reader.Close())
		}
		must.Succeed(t, c.Start())
		must.Succeed(t, writer.Close())
		if args[0] == "janitor" {
			must.OK(bufio.NewReader(reader).ReadString('\n'))(t)
			must.Succeed(t, reader.Close())
		}
		if _ = c.Wait(); c.ProcessState.ExitCode() != 141 || strings.Contains(stderr.String(), "pglimit: ") {
			t.Errorf("%q: exit code %d, stderr %q", args, c.ProcessState.ExitCode(), &stderr)
		}
		testworld.NoRows(t, testworld.Connect(t, address))
	}
}

// TestCommandKeySecret: the verbs hash keys as an application does. They take the secret, and the
// database's URL, from files too; a file that is missing ends them before the database is asked.
func TestCommandKeySecret(t *testing.T) {
	t.Parallel()
	const secret = "hunter2 and enough of it"
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	app := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: []byte(secret)})
	p := limiter.Policy{Name: "cli", Algorithm: limiter.TokenBucket, Limit: 1, Period: 1000 * time.Hour}
	testworld.Must(t)(app.Allow(t.Context(), p, "person@example.org"))
	env := []string{"PGLIMIT_KEY_SECRET=" + secret}
	with := func(want int, args ...string) {
		t.Helper()
		cmd := testworld.Command(t, address, args...)
		cmd.Env = append(cmd.Env, env...)
		out, _ := cmd.CombinedOutput() // the exit code reports it
		if code := cmd.ProcessState.ExitCode(); code != want || bytes.Contains(out, []byte("hunter2")) {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, want, out)
		}
	}
	with(1, "allow", "--limit", "1", "--period", "1000h", "person@example.org")
	dir, inEnv := t.TempDir(), env
	must.Succeed(t, errors.Join(os.WriteFile(dir+"/url", []byte(address+"\n"), 0o600), os.WriteFile(dir+"/secret", []byte(secret+"\n"), 0o600)))
	env = []string{"DATABASE_URL=", "DATABASE_URL_FILE=" + dir + "/url", "PGLIMIT_KEY_SECRET_FILE=" + dir + "/secret"}
	with(1, "allow", "--limit", "1", "--period", "1000h", "person@example.org")
	env = []string{"PGLIMIT_KEY_SECRET_FILE=" + dir + "/none"}
	with(2, "allow", "--limit", "1", "--period", "1000h", "person@example.org")
	env = inEnv
	with(0, "reset", "person@example.org")
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_token_bucket`); n != 0 {
		t.Errorf("reset left %d rows", n)
	}
	with(1, "reset", "person@example.org")       // the row is gone
	with(1, "block", "person@example.org", "1h") // it does nothing
	with(0, "block", "--new", "--policy", "cli", "--algorithm", "token_bucket", "person@example.org", "1h")
	with(0, "block", "person@example.org", "1h")
	with(1, "check", "--limit", "1", "--period", "1000h", "--cost", "0", "person@example.org")
	with(0, "wait", "--limit", "1", "person@example.org")
	if stored := testworld.Value[string](t, pool, `SELECT string_agg(key, ' ') FROM (SELECT key FROM pglimit_token_bucket UNION ALL SELECT key FROM pglimit_leaky_bucket_queue) k`); strings.Contains(stored, "person") {
		t.Errorf("stored %q", stored)
	}
	if code, _, _ := testworld.Pglimit(t, address, "check", "--limit", "1", "--cost", "0", "person@example.org"); code != 0 {
		t.Errorf("without the secret it is another key: exit code %d", code)
	}
}

// TestCommandVersion prints the server's version only if a database is named.
func TestCommandVersion(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	var v struct{ Version, Revision, Go, PostgreSQL string }
	testworld.PglimitJSON(t, &v, address, "version")
	if want := testworld.Value[string](t, testworld.Connect(t, address), "SHOW server_version"); v.PostgreSQL != want || v.Version == "" || !strings.HasPrefix(v.Go, "go1.") {
		t.Errorf("got %+v, want PostgreSQL %s", v, want)
	}
	v.PostgreSQL = ""
	testworld.PglimitJSON(t, &v, "", "version")
	if v.PostgreSQL != "" {
		t.Errorf("without a database: %+v", v)
	}
}
