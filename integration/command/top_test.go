package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

const secret = "PGLIMIT_KEY_SECRET=0123456789abcdef"

// TestCommandFindsHashedKeys: with a secret, KEY is hashed, and a prefix is refused.
func TestCommandFindsHashedKeys(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	run := func(env string, args ...string) (int, string, string) {
		t.Helper()
		cmd := bed.Command(t, address, args...)
		if env != "" {
			cmd.Env = append(cmd.Env, env)
		}
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run() // the exit code says it
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
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
		if code, _, stderr := run(secret, append(verb, "--prefix", "al", "--yes")[:3+len(verb)-1]...); code != 2 || !strings.Contains(stderr, "--prefix does not work with PGLIMIT_KEY_SECRET") {
			t.Errorf("%q --prefix: exit code %d, %q", verb, code, stderr)
		}
	}
	if code, _, stderr := run(secret, "block", "alice", "1h"); code != 0 {
		t.Error(stderr)
	}
	if code, _, stderr := run(secret, "block", "--new", "--name", "new", "--algorithm", "gcra", "alice", "1h"); code != 0 {
		t.Error(stderr)
	}
	if code, _, _ := run(secret, "check", "--name", "new", "--algorithm", "gcra", "--limit", "9", "alice"); code != 1 {
		t.Error("a new block does not hold")
	}
	if code, stdout, stderr := run(secret, "block", "--new", "--name", "any", "--all-algorithms", "bob", "1h"); code != 0 || strings.Count(stdout, "1 row") != 7 {
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
	address := bed.NewDatabase(t)
	if code, stdout, _ := bed.Pglimit(t, address, "top"); code != 0 || stdout != "no keys\n" {
		t.Errorf("of none: exit code %d, %q", code, stdout)
	}
	for _, args := range []string{"allow --algorithm fixed_window --period 1000h --limit 4 --cost 3 alice", "charge --algorithm fixed_window --name other --period 1000h --limit 4 --cost 9 bob"} {
		if code, _, stderr := bed.Pglimit(t, address, strings.Fields(args)...); code != 0 {
			t.Fatal(stderr)
		}
	}
	const want = "POLICY  ALGORITHM     KEY    USED  LEVEL/BURST  REMAINING  BLOCKED UNTIL  DENIALS  LAST DENIED\n" +
		"other   fixed_window  bob    100%  4/4          0          -              0        -\n" +
		"cli     fixed_window  alice  75%   3/4          1          -              0        -\n"
	if code, stdout, stderr := bed.Pglimit(t, address, "top"); code != 0 || stdout != want {
		t.Errorf("exit code %d, stdout\n%s%s", code, stdout, stderr)
	}
	for args, keys := range map[string]string{
		"top --once":                    "bob alice",
		"top --limit 1":                 "bob",
		"top --name cli":                "alice",
		"top --algorithm gcra":          "",
		"top --by recent":               "bob alice",
		"top --by recent --within 1ms":  "",
		"top --by denials --name other": "",
	} {
		var got struct {
			By   string
			Keys []map[string]any
		}
		bed.PglimitJSON(t, &got, address, strings.Fields(args)...)
		var names []string
		for _, k := range got.Keys {
			names = append(names, k["key"].(string))
			if len(k) != 13 {
				t.Errorf("%s: %v", args, k)
			}
		}
		if got.Keys == nil || strings.Join(names, " ") != keys {
			t.Errorf("%s: %q, want %q", args, names, keys)
		}
	}
	for _, args := range []string{"top --by size", "top --every 1ms", "top --limit 0", "top --limit 1001", "top --within -1s", "top --by denials --within 1h", "top alice", "find --limit 0 alice"} {
		if code, stdout, stderr := bed.Pglimit(t, address, strings.Fields(args)...); code != 2 || stdout != "" {
			t.Errorf("%s: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}
