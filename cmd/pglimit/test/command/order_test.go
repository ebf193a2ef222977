package command

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestCommandOrdersFindTheirRow: block, unblock and reset look under every policy and
// algorithm. They report by exit code and in JSON whether they found something, and where.
func TestCommandOrdersFindTheirRow(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('known', 'fixed_window', 5, 60)`)
	for _, c := range []struct {
		args string
		code int
		want string // what changed
	}{
		{"unblock alice", 1, ""},
		{"reset alice", 1, ""},
		{"block alice 1h", 1, ""}, // and does not block
		{"check --limit 9 alice", 0, ""},
		{"allow --limit 9 alice", 0, ""},
		{"allow --limit 9 --period 1m --policy login --algorithm leaky_bucket alice", 0, ""},
		{"allow --limit 9 --period 1m --policy login --algorithm leaky_bucket alicia", 0, ""},
		{"block --policy nothere alice 1h", 1, ""},
		{"block --algorithm fixed_window alice 1h", 1, ""},
		{"block --policy login --algorithm leaky_bucket alice 1h", 0, "login leaky_bucket 1"},
		{"check --limit 9 alice", 0, ""},
		{"check --limit 9 --period 1m --policy login --algorithm leaky_bucket alice", 1, ""},
		{"block alice 1h", 0, "cli token_bucket 1 login leaky_bucket 1"},
		{"unblock --algorithm token_bucket alice", 0, "cli token_bucket 1"},
		{"unblock alice", 0, "login leaky_bucket 1"},
		{"unblock alice", 1, ""},
		{"block --prefix --yes ali 1h", 0, "cli token_bucket 1 login leaky_bucket 2"},
		{"unblock --prefix --yes --policy login ali", 0, "login leaky_bucket 2"},
		{"reset alice", 0, "cli token_bucket 1 login leaky_bucket 1"},
		{"reset alice", 1, ""},
		{"forget --yes alicia", 0, "login leaky_bucket 1"},
		{"forget --yes alicia", 1, ""},
		// Without a row it needs --new.
		{"block --new --policy known --algorithm fixed_window carol 1h", 0, "known fixed_window 1"},
		{"check --limit 9 --period 1m --policy known --algorithm fixed_window carol", 1, ""},
		{"block --policy known --algorithm leaky_bucket carol 1h", 1, ""},
		{"block --new --policy other --algorithm leaky_bucket carol 1h", 0, "other leaky_bucket 1"},
		{"check --limit 9 --period 1m --policy other --algorithm leaky_bucket carol", 1, ""},
		{"block --new --policy other --algorithm leaky_bucket carol 2h", 0, "other leaky_bucket 1"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, address, append(strings.Fields(c.args), "--json")...)
		var o struct {
			Found   bool
			Changed []struct {
				Policy, Algorithm string
				Rows              json.Number
			}
		}
		err := json.Unmarshal([]byte(stdout), &o)
		var got []string
		for _, n := range o.Changed {
			got = append(got, n.Policy, n.Algorithm, n.Rows.String())
		}
		// Counts are in lock order; the test sorts them by policy.
		if len(got) == 6 && got[0] > got[3] {
			got = append(got[3:], got[:3]...)
		}
		if err != nil || code != c.code || o.Found != (c.want != "") || strings.Join(got, " ") != c.want {
			t.Errorf("%s: exit code %d, want %d; changed %q, want %q; %v: %s%s", c.args, code, c.code, got, c.want, err, stdout, stderr)
		}
		if strings.Contains(stderr, "pglimit: ") {
			t.Errorf("%s: the answer is on stdout, but stderr has %q", c.args, stderr)
		}
	}
}

func TestCommandOrdersSayWhatTheyDid(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	for _, args := range []string{"allow --limit 9 bob", "allow --limit 9 --period 1m --policy login --algorithm leaky_bucket bob", "allow --limit 9 eve\x1b[31m"} {
		if code, _, stderr := testworld.Pglimit(t, address, strings.Split(args, " ")...); code != 0 {
			t.Fatal(stderr)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want string // on stdout, or on stderr for exit code 2
	}{
		{[]string{"block", "bob", "15m"}, 0, "blocked bob for 15m:\nlogin  leaky_bucket  1 row\ncli    token_bucket  1 row\n"},
		{[]string{"block", "carol", "15m", "--policy", "login"}, 1, "nothing to block: no row of carol under policy login. To block it before its first request, pass --new, --policy and --algorithm\n"},
		{[]string{"unblock", "bob", "--policy", "login"}, 0, "unblocked bob (login, leaky_bucket)\n"},
		{[]string{"unblock", "bob", "--policy", "login"}, 1, "nothing to unblock: no block of bob under policy login\n"},
		{[]string{"unblock", "carol"}, 1, "nothing to unblock: no row of carol under any policy\n"},
		{[]string{"reset", "eve\x1b[31m"}, 0, "reset \"eve\\x1b[31m\" (cli, token_bucket)\n"},
		{[]string{"find", "eve\x1b[31m"}, 1, "nothing of \"eve\\x1b[31m\" under any policy\n"},
		{[]string{"forget", "bob", "--yes"}, 0, "forgot bob:\nlogin  leaky_bucket  1 row\ncli    token_bucket  1 row\n"},
		{[]string{"forget", "bob", "--yes"}, 1, "nothing to forget: no trace of bob under any policy\n"},
		{[]string{"forget", "bob"}, 2, "pglimit: forget needs --yes where it cannot ask: check with `pglimit find` what there is; see `pglimit forget --help`\n"},
		{[]string{"block", "--prefix", "b", "1h"}, 2, "block needs --yes where it cannot ask"},
		{[]string{"block", "--prefix", "--yes", "", "1h"}, 2, "KEY is empty: pass a key, or with --prefix at least its first character"},
		{[]string{"block", "--new", "bob", "1h"}, 2, "--new needs --policy"},
		{[]string{"block", "--new", "--policy", "nothere", "bob", "1h"}, 2, "--new needs --policy, and --algorithm or --all-algorithms"},
		{[]string{"block", "--new", "--prefix", "--yes", "b", "1h"}, 2, "--new excludes --prefix and --part"},
		{[]string{"block", "bob", "0s"}, 2, "DURATION is \"0s\": must be above 0"},
		{[]string{"block", "bob"}, 2, "DURATION is missing: only a --policy that the database or a program has"},
		{[]string{"block", "--policy", "nothere", "--cidr", "10.0.0.0/8"}, 2, "--pattern, --cidr, --until and --note need --policy, with a policy that the database or a program has"},
		{[]string{"unblock", "--cidr", "10.0.0.0/8"}, 1, "nothing to unblock: no block of keys in the network 10.0.0.0/8 under any policy\n"},
		{[]string{"block", "bob", "soon"}, 2, "DURATION is \"soon\""},
		{[]string{"reset", "--max", "0", "bob"}, 2, "--max is 0"},
		{[]string{"reset", "--algorithm", "x", "bob"}, 2, "Algorithm \"x\""},
		{[]string{"reset", "--policy", "UPPER", "bob"}, 2, "Name \"UPPER\""},
	} {
		code, stdout, stderr := testworld.Pglimit(t, address, c.args...)
		if c.code == 2 {
			if code != 2 || !strings.Contains(stderr, c.want) {
				t.Errorf("%q: exit code %d, stderr %q", c.args, code, stderr)
			}
		} else if code != c.code || stdout != c.want {
			t.Errorf("%q: exit code %d, stdout %q, want %q; stderr %q", c.args, code, stdout, c.want, stderr)
		}
	}
}

// TestCommandOrdersMany: --max bounds a prefix before anything changes.
func TestCommandOrdersMany(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 250, 1)
	const refused = "more than 249 rows of keys that begin with k: narrow it, or raise --max"
	if code, _, stderr := testworld.Pglimit(t, address, "reset", "--prefix", "k", "--yes", "--max", "249"); code != 2 || !strings.Contains(stderr, refused) {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_token_bucket`); n != 250 {
		t.Errorf("%d rows are left", n)
	}
	if code, stdout, stderr := testworld.Pglimit(t, address, "reset", "--prefix", "k", "--yes", "--max", "250"); code != 0 || stdout != "reset keys that begin with k:\np  token_bucket  250 rows\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestCommandOrdersOfAPart: --part reaches the keys in which KEY is one of the parts, and no
// others. Without it a line on stderr says that there are such keys.
func TestCommandOrdersOfAPart(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	for _, key := range []string{"pro1", "pro1:127.0.0.1", "pro10", "tenant:pro1", `tenant\:pro1`} {
		if code, _, stderr := testworld.Pglimit(t, address, "allow", "--limit", "9", key); code != 0 {
			t.Fatal(stderr)
		}
	}
	const hint = "not selected: 1 row of keys that begin with \"pro1:\"; --part selects them, and all other keys with the part pro1\n"
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string // a part of stderr
	}{
		{[]string{"unblock", "pro1"}, 1, "nothing to unblock: no block of pro1 under any policy\n", hint},
		{[]string{"unblock", "pro10"}, 1, "nothing to unblock: no block of pro10 under any policy\n", ""},
		{[]string{"block", "--part", "pro1", "1h"}, 2, "", "block needs --yes where it cannot ask"},
		{[]string{"block", "--part", "--yes", "pro1", "1h"}, 0, "blocked keys with the part pro1 for 1h:\ncli  token_bucket  3 rows\n", ""},
		{[]string{"reset", "--part", "--yes", "--max", "2", "pro1"}, 2, "", "more than 2 rows of keys with the part pro1"},
		{[]string{"forget", "--part", "--yes", "pro1"}, 0, "forgot keys with the part pro1:\ncli  token_bucket  3 rows\n", ""},
		{[]string{"find", "--part", "pro1"}, 1, "nothing of keys with the part pro1 under any policy\n", ""},
		{[]string{"reset", "pro10"}, 0, "reset pro10 (cli, token_bucket)\n", ""},
		{[]string{"reset", `tenant\:pro1`}, 0, "reset tenant\\:pro1 (cli, token_bucket)\n", ""},
	} {
		code, stdout, stderr := testworld.Pglimit(t, address, c.args...)
		if code != c.code || stdout != c.stdout || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%q: exit code %d, stdout %q, want %q; stderr %q, want %q", c.args, code, stdout, c.stdout, stderr, c.stderr)
		}
	}
}

const secret = "PGLIMIT_KEY_SECRET=0123456789abcdef"

// TestCommandFindsHashedKeys: with a secret, KEY is hashed, and a prefix is refused.
func TestCommandFindsHashedKeys(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	run := func(env string, args ...string) (int, string, string) {
		t.Helper()
		cmd := testworld.Command(t, address, args...)
		if env != "" {
			cmd.Env = append(cmd.Env, env)
		}
		return testworld.RunCommand(t, cmd)
	}
	if code, _, stderr := run(secret, "allow", "--limit", "9", "alice"); code != 0 {
		t.Fatal(stderr)
	}
	if code, stdout, _ := run("", "find", "alice"); code != 1 {
		t.Errorf("without the secret: exit code %d, %q", code, stdout)
	}
	code, stdout, stderr := run(secret, "find", "alice", "--json")
	var found struct{ Keys []struct{ Key string } }
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != 0 || len(found.Keys) != 1 || strings.Contains(stdout, "alice") {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	for _, verb := range [][]string{{"find"}, {"reset"}, {"unblock"}, {"forget"}} {
		if code, _, stderr := run(secret, append(verb, "--prefix", "al", "--yes")[:3+len(verb)-1]...); verb[0] != "unblock" && (code != 2 || !strings.Contains(stderr, "--prefix does not work with PGLIMIT_KEY_SECRET")) {
			t.Errorf("%q --prefix: exit code %d, %q", verb, code, stderr)
		}
		if code, _, stderr := run(secret, append(verb, "--part", "al", "--yes")[:3+len(verb)-1]...); code != 2 || !strings.Contains(stderr, "--part does not work with PGLIMIT_KEY_SECRET") {
			t.Errorf("%q --part: exit code %d, %q", verb, code, stderr)
		}
	}
	if code, stdout, stderr := run(secret, "unblock", "--prefix", "al", "--yes"); code != 1 { // it lifts stored blocks, which have the prefix as it is
		t.Errorf("unblock --prefix: exit code %d, %q, %q", code, stdout, stderr)
	}
	if code, _, stderr := run(secret, "block", "alice", "1h"); code != 0 {
		t.Error(stderr)
	}
	if code, _, stderr := run(secret, "block", "--new", "--policy", "new", "--algorithm", "gcra", "alice", "1h"); code != 0 {
		t.Error(stderr)
	}
	if code, _, _ := run(secret, "check", "--policy", "new", "--algorithm", "gcra", "--limit", "9", "--period", "1m", "alice"); code != 1 {
		t.Error("a new block does not hold")
	}
	if code, stdout, stderr := run(secret, "block", "--new", "--policy", "any", "--all-algorithms", "bob", "1h"); code != 0 || strings.Count(stdout, "1 row") != 7 {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	// The hash that top shows works without the secret.
	if code, stdout, stderr := run("", "unblock", found.Keys[0].Key); code != 0 || strings.Count(stdout, "1 row") != 2 {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

// TestCommandTop prints once where there is no terminal.
func TestCommandTop(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	if code, stdout, _ := testworld.Pglimit(t, address, "top"); code != 0 || stdout != "no keys\n" {
		t.Errorf("of none: exit code %d, %q", code, stdout)
	}
	for _, args := range []string{"allow --algorithm fixed_window --period 1000h --limit 4 --cost 3 alice", "charge --algorithm fixed_window --policy other --period 1000h --limit 4 --cost 9 bob"} {
		if code, _, stderr := testworld.Pglimit(t, address, strings.Fields(args)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	const want = "POLICY  KIND   KEY    STATUS   USED  LEVEL/BURST\n" +
		"other   fixed  bob    limited  100%  4/4\n" +
		"cli     fixed  alice  ok       75%   3/4\n"
	if code, stdout, stderr := testworld.Pglimit(t, address, "top"); code != 0 || stdout != want {
		t.Errorf("exit code %d, stdout\n%s%s", code, stdout, stderr)
	}
	for args, keys := range map[string]string{
		"top --once":                      "bob alice",
		"top --rows 1":                    "bob",
		"top --policy cli":                "alice",
		"top --algorithm gcra":            "",
		"top --by recent":                 "bob alice",
		"top --by recent --within 1ms":    "",
		"top --by denials --policy other": "",
	} {
		var got struct {
			By    string
			Since string
			Keys  []map[string]any
		}
		testworld.PglimitJSON(t, &got, address, strings.Fields(args)...)
		var names []string
		for _, k := range got.Keys {
			names = append(names, k["key"].(string))
			if len(k) != 22 {
				t.Errorf("%s: %v", args, k)
			}
		}
		if got.Keys == nil || strings.Join(names, " ") != keys {
			t.Errorf("%s: %q, want %q", args, names, keys)
		}
	}
	for _, args := range []string{"top --by size", "top --every 1ms", "top --rows 0", "top --rows 1001", "top --within -1s", "top --by denials --within 91d", "top alice", "find --rows 0 alice"} {
		if code, stdout, stderr := testworld.Pglimit(t, address, strings.Fields(args)...); code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

// TestCommandListsFit: each list of keys with 30 characters fits 80 columns, or has every key and
// ID whole: only a terminal cuts keys.
func TestCommandListsFit(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	const key = "customer-0123456789-0123456789"
	run := func(args ...string) string {
		t.Helper()
		_, stdout, stderr := testworld.Pglimit(t, address, args...)
		if stderr != "" {
			t.Fatalf("%q: %s", args, stderr)
		}
		return stdout
	}
	run("policy", "set", "search-api", "--algorithm", "sliding_window_counter", "--limit", "1000000", "--period", "1h", "--note", "agreed")
	run("reserve", "--policy", "search-api", key)
	run("allow", "--policy", "search-api", "--cost", "999999", key)
	run("override", "set", key, "--policy", "search-api", "--limit", "1.5x", "--until", "friday", "--note", "trial")
	run("block", key, "2h")
	testworld.Exec(t, pool, `INSERT INTO pglimit_denial (policy, key, algorithm, slot_us, denials, shadowed, units, last_denied_at_us)
		SELECT 'search-api', $1, 'sliding_window_counter', us / 60000000 * 60000000, 12345, 0, 12345, us FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint AS us) AS now`, key)
	for args, sections := range map[string]int{"top": 1, "top --by denials": 1, "find " + key: 4, "find --prefix customer": 4, "override list": 1, "policy list": 1} {
		text := run(strings.Fields(args)...)
		if got := strings.Count(text, "POLICY") + strings.Count(text, "NAME"); got != sections {
			t.Errorf("%s: %d sections, want %d:\n%s", args, got, sections, text)
		}
		for line := range strings.Lines(text) {
			header := strings.HasPrefix(line, "POLICY")
			if width := utf8.RuneCountInString(line) - 1; width > 80 && !header && !strings.Contains(line, "sliding_window_counter:") && !strings.Contains(line, key) {
				t.Errorf("%s: %d columns: %s", args, width, line)
			}
		}
		if repeats := !strings.HasPrefix(args, "find "+key) && args != "policy list"; strings.Contains(text, key+" ") != repeats {
			t.Errorf("%s: the key is cut, or repeated:\n%s", args, text)
		}
	}
}
