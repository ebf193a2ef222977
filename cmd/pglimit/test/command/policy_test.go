package command

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// expecting returns a function that runs the command on a database. It expects the exit code and a
// part of what the command writes, and returns what that wrote to stdout.
func expecting(t *testing.T, address string) func(wantCode int, want string, args ...string) string {
	return func(wantCode int, want string, args ...string) string {
		t.Helper()
		code, stdout, stderr := testworld.Pglimit(t, address, args...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Fatalf("%q: exit code %d, stdout %q, stderr %q; want %d and %q", args, code, stdout, stderr, wantCode, want)
		}
		return stdout
	}
}

// TestUnmigrated: without tables a command says so in one line.
func TestUnmigrated(t *testing.T) {
	t.Parallel()
	unmigrated := testworld.EmptyDatabase(t)
	for _, args := range []string{"allow --limit 5 k", "policy list", "usage --policy login k", "top", "janitor"} {
		code, stdout, stderr := testworld.Pglimit(t, unmigrated, strings.Fields(args)...)
		if code != 3 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "pglimit: the database has no pglimit tables") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want one line", args, code, stdout, stderr)
		}
	}
}

// TestPolicyCommands: a policy is set, changed, used by its name, rolled back and deleted, and
// its history has each change.
func TestPolicyCommands(t *testing.T) {
	t.Parallel()
	run := expecting(t, testworld.NewDatabase(t))
	run(0, "the database has no policies", "policy", "list")
	run(1, `there is no policy "login"`, "policy", "get", "login")
	run(2, "the database has no policy login, and a new one needs --limit, and --period or --calendar", "policy", "set", "login", "--burst", "3")
	run(2, "a new one needs --period or --calendar", "policy", "set", "login", "--limit", "50")
	run(1, `there is no policy "login"`, "policy", "get", "login") // nothing was stored
	run(2, "--policy is \"login\": neither the database nor a program has such a policy", "allow", "--policy", "login", "alice")
	run(0, "+ policy login\n    algorithm: fixed_window\n    limit: 2\n    period: 1h\n    note: first\nversion 1\n",
		"policy", "set", "login", "--algorithm", "fixed_window", "--limit", "2", "--period", "1h", "--note", "first")
	run(0, "so already", "policy", "set", "login", "--limit", "2", "--note", "first")
	run(2, "Limit -2", "policy", "set", "login", "--limit", "-2")
	run(0, "~ policy login\n    limit: 2 → 3\nnothing was changed: --dry-run\n", "policy", "set", "login", "--limit", "3", "--dry-run")
	run(0, "so already", "policy", "set", "login", "--limit", "2")

	run(0, "allowed: 1 of 2", "allow", "--policy", "login", "alice")
	run(0, "allowed: 0 of 2", "allow", "--policy", "login", "alice")
	run(1, "denied (limit)", "allow", "--policy", "login", "alice")
	run(2, "leave --limit out", "allow", "--policy", "login", "--limit", "5", "alice")
	run(0, "~ policy login\n    limit: 2 → 4\n", "policy", "set", "login", "--limit", "4")
	run(0, "~ policy login\n    shadow: true\n", "policy", "set", "login", "--shadow")
	run(0, "~ policy login\n    shadow: true → false\n", "policy", "set", "login", "--shadow=false")
	run(0, "~ policy login\n    limit: 4 → 2\nnothing was changed", "policy", "rollback", "login", "--to", "1", "--dry-run")
	run(0, "~ policy login\n    limit: 4 → 2\nversion 5\n", "policy", "rollback", "login", "--to", "1")
	run(0, "so already", "policy", "rollback", "login", "--to", "1")
	run(0, "~ policy login\n    limit: 2 → 4\n", "policy", "rollback", "login", "--to", "4", "--note", "tried")
	run(1, "there was no policy other at version 1", "policy", "rollback", "other", "--to", "1")
	run(2, "--to is 0: give a version", "policy", "rollback", "login")
	run(2, "--to is 7: the policies have version 6", "policy", "rollback", "login", "--to", "7")
	run(0, "note: tried", "policy", "get", "login")
	run(0, "limit: 4 → 5", "policy", "set", "login", "--limit", "5")
	run(0, "limit: 5 → 4", "policy", "set", "login", "--limit", "4")
	if out := run(0, "", "policy", "get", "login"); strings.Contains(out, "note") {
		t.Errorf("the note of another change: %s", out)
	}
	notes := regexp.MustCompile(`"note": "(.*)"`).FindAllStringSubmatch(run(0, "", "policy", "history", "login", "--json"), -1)
	if got := fmt.Sprint(notes); got != `[["note": "tried" tried] ["note": "back to version 1" back to version 1] ["note": "first" first]]` {
		t.Errorf("the history has the notes %s", got)
	}
	run(0, "allowed: 1", "allow", "--policy", "login", "alice")
	run(2, "nothing was changed", "policy", "delete", "login") // no answer
	run(0, "deleted policy login", "policy", "delete", "login", "--yes", "--note", "over")
	run(1, "there is no policy", "policy", "delete", "login", "--yes")
	history := run(0, "first", "policy", "history", "login")
	for _, part := range []string{"- policy login", ": over", "limit: 2 → 4"} {
		if !strings.Contains(history, part) {
			t.Errorf("the history lacks %q:\n%s", part, history)
		}
	}
	run(0, "+ policy login\n    algorithm: fixed_window\n    limit: 4\n", "policy", "rollback", "login", "--to", "4") // it was deleted
	if strings.Index(history, "- policy login") > strings.Index(history, "+ policy login") {
		t.Errorf("not the newest first:\n%s", history)
	}
}

// TestOverrideCommands: an override is set, changed, in force, listed and deleted, and the history
// has it.
func TestOverrideCommands(t *testing.T) {
	t.Parallel()
	run := expecting(t, testworld.NewDatabase(t))
	run(0, "+ policy login", "policy", "set", "login", "--algorithm", "fixed_window", "--limit", "4", "--period", "1h")
	run(2, "--policy is missing", "override", "set", "bob", "--limit", "100")
	run(0, "+ override of login for \"bob\"\n    limit: 100\n    until: 2127-01-31\n    note: trial\nversion",
		"override", "set", "bob", "--policy", "login", "--limit", "100", "--until", "2127-01-31", "--note", "trial")
	run(0, "so already", "override", "set", "bob", "--policy", "login", "--limit", "100", "--until", "2127-01-31", "--note", "trial")
	run(0, "overrides:\n  - policy: login\n    key: bob\n    limit: 100\n", "override", "get", "bob", "--policy", "login")
	run(1, "there is no override of login for eve", "override", "get", "eve", "--policy", "login")
	run(0, "allowed: 99 of 100", "allow", "--policy", "login", "bob")
	run(0, "", "override", "set", "carol", "--policy", "login", "--unlimited")
	for range 6 {
		run(0, "allowed", "allow", "--policy", "login", "carol")
	}
	run(2, "changes nothing", "override", "set", "dave", "--policy", "login")
	run(0, "anchor: 2024-01-15\n", "policy", "set", "credits", "--limit", "500", "--calendar", "month", "--anchor", "2024-01-15")
	run(0, "anchor: 2024-01-31T09:30\n", "override", "set", "bob", "--policy", "credits", "--anchor", "2024-01-31T09:30")
	run(0, "anchor 2024-01-31T09:30", "override", "list", "--policy", "credits")
	run(2, `the override has the anchor "31": must be a date such as 2024-01-31`, "override", "set", "bob", "--policy", "credits", "--anchor", "31")
	run(2, "policy login has no calendar", "override", "set", "bob", "--policy", "login", "--anchor", "2024-01-31")
	run(0, "factor: 10\n", "override", "set", "grace", "--policy", "login", "--limit", "10x", "--until", "friday")
	run(0, "limit 10x, until", "override", "list", "--policy", "login")
	run(2, `--policy is "logn": neither the database nor a program nor a row has it; did you mean "login"? For a policy to come, pass --new`, "override", "set", "grace", "--policy", "logn", "--limit", "10x")
	run(0, "factor: 10\n", "override", "set", "grace", "--policy", "compiled", "--limit", "10x", "--new")
	run(0, "factor: 10 → 20\n", "override", "set", "grace", "--policy", "compiled", "--limit", "20x")
	run(0, "allowed", "allow", "--policy", "counted", "--limit", "5", "--period", "1h", "grace")
	run(0, "factor: 10\n", "override", "set", "grace", "--policy", "counted", "--limit", "10x") // it has a row
	run(2, `--until is "2020-01-01": that has passed`, "override", "set", "dave", "--policy", "login", "--limit", "1", "--until", "2020-01-01")
	run(2, "2027-02-30", "override", "set", "dave", "--policy", "login", "--limit", "1", "--until", "2027-02-30")
	run(0, "limit: 100 → 200\n    until: 2127-01-31 → default\nversion", "override", "set", "bob", "--policy", "login", "--limit", "200")
	run(0, "trial", "override", "list", "--policy", "login")
	run(0, "note: trial → agreed\nversion", "override", "set", "bob", "--policy", "login", "--limit", "200", "--note", "agreed")
	run(0, "note: agreed → default\nversion", "override", "set", "bob", "--policy", "login", "--limit", "200", "--note=")
	run(2, "nothing was changed", "override", "delete", "bob", "--policy", "login") // no answer
	run(0, "deleted the override", "override", "delete", "bob", "--policy", "login", "--yes")
	run(1, "there is no override", "override", "delete", "bob", "--policy", "login", "--yes")
	run(0, "of 4 remaining", "allow", "--policy", "login", "bob")
	history := run(0, "", "policy", "history", "login")
	for _, part := range []string{"- override of login for \"bob\"", `+ override of login for "carol"`, "unlimited: true"} {
		if !strings.Contains(history, part) {
			t.Errorf("the history lacks %q:\n%s", part, history)
		}
	}
}

// TestPolicyVerbs: the verbs take a policy by its name, allow-all several.
func TestPolicyVerbs(t *testing.T) {
	t.Parallel()
	run := expecting(t, testworld.NewDatabase(t))
	run(0, "+ policy login", "policy", "set", "login", "--algorithm", "fixed_window", "--limit", "4", "--period", "1h")
	run(0, "granted 4: 0 of 4 remaining", "allow-up-to", "--policy", "login", "--cost", "9", "frank")
	run(1, "denied (limit)", "allow-up-to", "--policy", "login", "frank")
	run(0, "+ policy company", "policy", "set", "company", "--algorithm", "fixed_window", "--limit", "2", "--period", "1h")
	run(0, "login    gina  allowed: 3 of 4", "allow-all", "--policy", "login", "gina", "--policy", "company", "acme")
	run(0, "company  acme  allowed: 0 of 2", "allow-all", "--policy", "login", "gina", "--policy", "company", "acme")
	run(1, "denied by company, nothing was counted:\nlogin    gina  would fit\n", "allow-all", "--policy", "login", "gina", "--policy", "company", "acme")
	run(0, "allowed: 1 of 4", "allow", "--policy", "login", "gina")
	run(0, "gave 1: 3 of 4 remaining", "allow-any", "--policy", "company", "acme", "--policy", "login", "judy", "--cost", "1")
	run(0, "login    judy  gave 3: 0 of 4 remaining\ncompany  judy  gave 1: 1 of 2 remaining", "allow-any", "--policy", "login", "--policy", "company", "judy", "--cost", "4", "--split")
	run(0, `"granted_by": 1`, "allow-any", "--policy", "login", "--policy", "company", "judy", "--json")
	run(1, "denied, nothing was counted:\nlogin    judy  denied (limit)", "allow-any", "--policy", "login", "--policy", "company", "judy", "--split")
	for range 2 {
		run(0, "login    kim  allowed: 2 of 4", "allow-all", "--policy", "login", "--policy", "company", "kim", "--cost", "2", "--idempotency-key", "order 1")
		run(0, "login    lou  gave 4: 0 of 4 remaining\ncompany  lou  gave 1: 1 of 2 remaining", "allow-any", "--policy", "login", "--policy", "company", "lou", "--cost", "5", "--split", "--idempotency-key", "order 2")
	}
	run(2, "was used with cost 2", "allow-all", "--policy", "login", "--policy", "company", "kim", "--idempotency-key", "order 1")
	run(2, "--cost is \"x\"", "allow-any", "--policy", "login", "--cost", "x", "a")
	run(2, "--cost is given 2 times, for 3 requests", "allow-all", "--policy", "login", "--cost", "1", "--cost", "2", "a", "b", "c")
	run(2, "--policy is \"nothere\"", "allow-all", "--policy", "login", "--policy", "nothere", "gina")
}

// TestReserveAll: several keys are reserved, settled and cancelled at once, or none.
func TestReserveAll(t *testing.T) {
	t.Parallel()
	run := expecting(t, testworld.NewDatabase(t))
	for _, name := range []string{"tokens", "cents"} {
		run(0, "+ policy "+name, "policy", "set", name, "--algorithm", "fixed_window", "--limit", "10", "--period", "1h")
	}
	reserve := func(more ...string) []string {
		t.Helper()
		var made struct{ IDs []string }
		must.Succeed(t, json.Unmarshal([]byte(run(0, `"expires_at"`, slices.Concat([]string{"reserve-all", "--policy", "tokens", "--policy", "cents", "acme", "--json"}, more)...)), &made))
		return made.IDs
	}
	ids := reserve("--cost", "7", "--cost", "4", "--idempotency-key", "job 1")
	if again := reserve("--cost", "7", "--cost", "4", "--idempotency-key", "job 1"); len(ids) != 2 || !slices.Equal(ids, again) {
		t.Errorf("%v, then %v", ids, again)
	}
	run(1, "denied by tokens, nothing was counted:\ntokens  acme  denied (limit)", "reserve-all", "--policy", "tokens", "--policy", "cents", "acme", "--cost", "4")
	run(0, "reserved   4 in 1 open", "usage", "--policy", "cents", "acme")
	run(2, "--units is missing", "settle-all", ids[0])
	run(2, "--units is \"x\"", "settle-all", ids[0], "--units", "x")
	run(2, "--units is given 2 times, for 3 reservations", "settle-all", ids[0], ids[1], "x", "--units", "1", "--units", "2")
	run(2, "ids[1] \"x\"", "cancel-all", ids[0], "x")
	run(0, "settled with 1: 9 of 10 remaining", "settle-all", ids[0], ids[1], "--units", "5", "--units", "1")
	run(0, `"replayed": true`, "settle-all", ids[0], ids[1], "--units", "5", "--units", "1", "--json")
	run(1, `"ended": true`, "cancel-all", ids[1], "--json")
	more := reserve("--ttl", "1m")
	run(1, "nothing to settle-all: ", "settle-all", more[0], ids[1], "--units", "2")
	run(0, "spent      5\nreserved   1 in 1 open", "usage", "--policy", "tokens", "acme")
	run(0, "cancelled "+more[0]+"\ncancelled "+more[1], "cancel-all", more[0], more[1])
	run(0, "tokens  acme  1: 4 of 10 remaining  fixed_window:", "reserve-all", "--policy", "tokens", "--policy", "cents", "acme")
}

// TestStoredBlocks: a block of a stored policy needs its name only, holds for keys to come, is in
// the history, and unblock deletes it.
func TestStoredBlocks(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	run := expecting(t, address)
	run(0, "", "policy", "set", "login", "--limit", "9", "--period", "1h")
	run(0, "+ override of login for \"alice\"\n    blocked: true\n    until: 2127-01-31\nversion 2\n", "block", "alice", "--policy", "login", "--until", "2127-01-31")
	run(0, "so already", "block", "alice", "--policy", "login", "--until", "2127-01-31")
	run(0, "~ override of login for \"alice\"\n    until: 2127-01-31 → default\n", "block", "alice", "--policy", "login")
	run(0, "+ override of login for prefix \"bot-\"\n    blocked: true\n", "block", "bot-", "--prefix", "--policy", "login", "1h")
	run(0, "pattern \"*@spam.example\"", "block", "*@spam.example", "--pattern", "--policy", "login", "--note", "spam")
	run(0, "cidr \"203.0.113.0/24\"", "block", "203.0.113.0/24", "--cidr", "--policy", "login")
	run(0, "unlimited: true", "override", "set", "203.0.113.128/25", "--cidr", "--policy", "login", "--unlimited")
	for key, want := range map[string]string{"alice": "the block has no end", "bot-1": "denied (blocked): retry after", "a@spam.example": "the block has no end", "bob:203.0.113.9": "the block has no end"} {
		run(1, want, "allow", "--policy", "login", key)
		run(1, `"reason": "blocked"`, "check", "--policy", "login", "--json", key)
	}
	for key, lift := range map[string]string{"alice": "unblock --policy login -- alice", "bot-1": "override delete --prefix --policy login -- bot-", "a@spam.example": "override delete --pattern --policy login -- '*@spam.example'", "bob:203.0.113.9": "override delete --cidr --policy login -- 203.0.113.0/24"} {
		run(0, "token_bucket: blocked now\n", "why", key)
		run(0, "  lift      pglimit "+lift+"\n", "why", key)
		run(0, "token_bucket  blocked  ", "find", key)
		run(0, "\nto lift a block: pglimit "+lift+"\n", "find", key)
	}
	run(0, "allowed", "allow", "--policy", "login", "203.0.113.200")
	run(0, "*@spam.example    pattern blocked  ", "override", "list", "--policy", "login")
	run(0, "match: pattern\n    blocked: true\n    note: spam\n", "override", "get", "*@spam.example", "--pattern", "--policy", "login")
	run(1, "there is no override of login for prefix *@spam.example", "override", "get", "*@spam.example", "--prefix", "--policy", "login")
	run(2, `Override.Key "203.0.113.7/24": must be a network such as 203.0.113.0/24 or 2001:db8::/32; this address is in 203.0.113.0/24`, "block", "203.0.113.7/24", "--cidr", "--policy", "login")
	run(2, "--until excludes DURATION", "block", "alice", "1h", "--policy", "login", "--until", "friday")
	run(0, "", "override", "set", "vip", "--policy", "login", "--limit", "10x")
	run(2, "vip has another override of login: limit 10x. Delete it first", "block", "vip", "--policy", "login")
	run(0, "allowed", "allow", "--policy", "login", "vip")
	run(0, "blocked vip for 1h (login, token_bucket)", "block", "vip", "1h", "--policy", "login", "--algorithm", "token_bucket")
	run(0, "unblocked vip (login, token_bucket)", "unblock", "vip")
	run(0, `"match": "cidr"`, "unblock", "203.0.113.0/24", "--cidr", "--json")
	run(0, "unblocked alice:\nlogin  -  1 override\n", "unblock", "alice", "--note", "over")
	run(1, "nothing to unblock: no row of bot- under policy login", "unblock", "bot-", "--policy", "login") // one key
	run(0, "unblocked keys that begin with bot-:\nlogin  -  1 override\n", "unblock", "bot-", "--prefix", "--yes")
	run(0, "keys that match *@spam.example:", "unblock", "*@spam.example", "--pattern", "--policy", "login")
	run(0, "allowed", "allow", "--policy", "login", "bob:203.0.113.9")
	run(0, "- override of login for pattern \"*@spam.example\"", "policy", "history", "login")
	run(0, ": over\n- override of login for \"alice\"", "policy", "history", "login")
	run(0, "", "block", "bob:", "--prefix", "--policy", "login") // which has a row
	run(0, "bob:203.0.113.9  blocked  ", "top")
	run(0, "\nto lift a block: pglimit override delete --prefix --policy login -- bob:\n", "top")
	// Where keys are hashed, one key is, and what stands for many is not.
	for _, args := range [][]string{{"block", "alice", "--policy", "login"}, {"block", "bot-", "--prefix", "--policy", "login"}, {"unblock", "alice"}, {"unblock", "bot-", "--prefix"}, {"top"}} {
		cmd := testworld.Command(t, address, args...)
		cmd.Env = append(cmd.Environ(), "PGLIMIT_KEY_SECRET=a secret of more than 16 bytes")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "nothing") || (args[0] == "top") != strings.Contains(string(out), "keys are hashes") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	run(0, `"overrides": [
    {
      "policy": "login",
      "key": "203.0.113.128/25",`, "override", "list", "--json")
}

// TestPolicyFiles: import shows and makes what diff shows, all or nothing, and export writes
// what import reads.
func TestPolicyFiles(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	file := t.TempDir() + "/limits.yaml"
	write := func(text string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	}
	run := func(wantCode int, want, stdin string, args ...string) (string, string) {
		t.Helper()
		cmd := testworld.Command(t, address, args...)
		cmd.Stdin = strings.NewReader(stdin)
		code, stdout, stderr := testworld.RunCommand(t, cmd)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Fatalf("%q: exit code %d, stdout %q, stderr %q; want %d and %q", args, code, stdout, stderr, wantCode, want)
		}
		return stdout, stderr
	}
	write(`policies:
- {name: login, algorithm: gcra, limit: 5, period: 1m}
- {name: budget, algorithm: fixed_window, limit: 1000, calendar: month, time_zone: Europe/Vienna, note: "per account"}
overrides:
- {policy: login, key: alice, limit: 100}
- {policy: login, key: bot-, match: prefix, blocked: true, note: attack}
- {policy: login, key: bot-, match: pattern, unlimited: true}
- {policy: login, key: bob, limit: 100, until: 2020-01-31}
`)
	run(1, "left out 1 override that ended before now", "", "policy", "diff", file)
	run(1, "+ policy login", "", "policy", "diff", file)
	run(1, "nothing was changed", "n\n", "policy", "import", file)
	run(1, "+ policy login", "", "policy", "diff", file)
	run(0, "5 changes made", "yes\n", "policy", "import", "--note", "ticket 7", file)
	if out, _ := run(0, "", "", "policy", "history"); strings.Count(out, ": ticket 7\n+") != 5 {
		t.Errorf("the note is not in all changes of the history:\n%s", out)
	}
	run(0, "no changes", "", "policy", "diff", "--prune", file)
	run(0, "no changes", "", "policy", "import", file)
	for _, format := range [][]string{{"policy", "export"}, {"policy", "export", "--json"}} {
		exported, _ := run(0, "Europe/Vienna", "", format...)
		run(0, "no changes", exported, "policy", "diff", "--prune", "-")
	}

	write(`policies:
- {name: login, algorithm: gcra, limit: 5, period: 1m}
- {name: api, algorithm: gcra, limit: 0, period: 1m}
- {name: Api, algorithm: gcra, limit: 1, period: 1m}
`)
	run(2, file+":3: policies[1].limit is 0", "", "policy", "import", "--yes", file)
	run(2, file+`:4: policies[2].name is "Api"`, "", "policy", "import", "--yes", file)
	write(`policies:
- {name: login, algorithm: fixed_window, limit: 5, period: 1m}
`)
	run(0, "algorithm: gcra → fixed_window", "", "policy", "import", "--yes", file)
	run(0, "- policy budget", "", "policy", "import", "--yes", "--prune", file)
	out, _ := run(0, "", "", "policy", "list", "--json")
	if strings.Contains(out, "budget") || !strings.Contains(out, "fixed_window") {
		t.Errorf("got %s", out)
	}
	run(0, "allowed: 4 of 5", "", "allow", "--policy", file+"#login", "zoe")
}

// TestPolicyChangesUnderLoad: two processes that read lines follow a change of the policy.
func TestPolicyChangesUnderLoad(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	set := func(limit string) {
		t.Helper()
		if code, _, stderr := testworld.Pglimit(t, address, "policy", "set", "login", "--algorithm", "fixed_window", "--limit", limit, "--period", "1000h"); code != 0 {
			t.Fatal(stderr)
		}
	}
	set("1000000")
	type process struct {
		lines   io.WriteCloser
		answers *bufio.Scanner
	}
	var all []process
	for range 2 {
		cmd := testworld.Command(t, address, "allow", "--policy", "login", "-")
		in := must.OK(cmd.StdinPipe())(t)
		out := must.OK(cmd.StdoutPipe())(t)
		must.Succeed(t, cmd.Start())
		defer cmd.Wait()
		defer in.Close()
		all = append(all, process{in, bufio.NewScanner(out)})
	}
	ask := func(p process) string {
		t.Helper()
		if _, err := io.WriteString(p.lines, "alice\n"); err != nil || !p.answers.Scan() {
			t.Fatalf("%v, %v", err, p.answers.Err())
		}
		return p.answers.Text()
	}
	for _, p := range all {
		if got := ask(p); !strings.Contains(got, "of 1000000 remaining") {
			t.Fatal(got)
		}
	}
	set("2000000")
	for _, p := range all { // the test's timeout ends it if a change does not arrive
		for !strings.Contains(ask(p), "of 2000000 remaining") {
		}
	}
}
