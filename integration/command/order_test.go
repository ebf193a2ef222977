package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

// TestCommandOrdersFindTheirRow: block, unblock and reset report by exit code and in JSON
// whether they found a row. They do their work in both cases.
func TestCommandOrdersFindTheirRow(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	for _, c := range []struct {
		args  string
		code  int
		found bool
	}{
		{"unblock alice", 1, false},
		{"reset alice", 1, false},
		{"block alice 1h", 1, false}, // and blocks
		{"check --limit 9 alice", 1, false},
		{"block alice 1h", 0, true},
		{"block --algorithm gcra alice 1h", 1, false},
		{"block --name other alice 1h", 1, false},
		{"unblock alice", 0, true},
		{"unblock alice", 1, false},
		{"check --limit 9 alice", 0, false},
		{"reset alice", 0, true},
		{"reset alice", 1, false},
		{"allow --limit 9 bob", 0, false},
		{"block bob 1h", 0, true},
	} {
		code, stdout, stderr := bed.Pglimit(t, address, append(strings.Fields(c.args), "--json")...)
		var o struct{ Found bool }
		if err := json.Unmarshal([]byte(stdout), &o); err != nil || code != c.code || o.Found != c.found {
			t.Errorf("%s: exit code %d, want %d; found %v, want %v; %v: %s%s", c.args, code, c.code, o.Found, c.found, err, stdout, stderr)
		}
		if strings.Contains(stderr, "pglimit: ") {
			t.Errorf("%s: the answer is on stdout, but stderr has %q", c.args, stderr)
		}
	}
	// A block that has ended cannot be lifted.
	bed.Exec(t, pool, `UPDATE pglimit_token_bucket SET blocked_until_us = updated_at_us WHERE key = 'bob'`)
	if code, stdout, _ := bed.Pglimit(t, address, "unblock", "bob"); code != 1 || stdout != "nothing to unblock: bob was not blocked (cli, token_bucket)\n" {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
	const want = "carol had no row under policy login, algorithm gcra; it is blocked now, for 15m0s\n"
	if code, stdout, _ := bed.Pglimit(t, address, "block", "--name", "login", "--algorithm", "gcra", "carol", "15m"); code != 1 || stdout != want {
		t.Errorf("exit code %d, stdout %q, want %q", code, stdout, want)
	}
}
