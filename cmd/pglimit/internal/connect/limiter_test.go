package connect_test

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
)

// TestKeySecretShort: a secret that is set but empty or short ends every command that
// stores keys, before it opens a database. No output shows it.
func TestKeySecretShort(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://app@127.0.0.1:1/shop") // answers with exit code 3
	for _, args := range []string{
		"allow --limit 1 k", "allow --limit 1 -", "check --limit 1 k", "charge --limit 1 k", "refund --limit 1 k",
		"wait --limit 1 k", "reserve --limit 1 k", "settle 1 1", "cancel 1", "usage --limit 1 k",
		"block k 1m", "unblock k", "reset k", "janitor", "demo", "playground --addr 127.0.0.1:0",
	} {
		for secret, want := range map[string]string{
			"":                "PGLIMIT_KEY_SECRET is set but empty",
			"hunter2":         "PGLIMIT_KEY_SECRET has 7 bytes",
			"hunter2hunter2h": "PGLIMIT_KEY_SECRET has 15 bytes",
		} {
			t.Setenv("PGLIMIT_KEY_SECRET", secret)
			code, stdout, stderr := commandtest.Call(t, strings.Fields(args)...)
			if code != cli.ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) || strings.Contains(stderr, "database:") {
				t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %d and one line with %q", args, code, stdout, stderr, cli.ExitUsage, want)
			}
			if strings.Contains(stderr, "hunter2") {
				t.Errorf("%s: stderr shows the secret: %s", args, stderr)
			}
		}
	}
	t.Setenv("PGLIMIT_KEY_SECRET", "hunter2hunter2hu")
	if code, _, stderr := commandtest.Call(t, "check", "--limit", "1", "k"); code != cli.ExitDatabase || strings.Contains(stderr, "hunter2") {
		t.Errorf("16 bytes: exit code %d, want %d: %s", code, cli.ExitDatabase, stderr)
	}
	t.Setenv("PGLIMIT_KEY_SECRET", "short")
	if code, _, stderr := commandtest.Call(t, "migrate", "status"); code != cli.ExitDatabase {
		t.Errorf("migrate stores no keys: exit code %d, want %d: %s", code, cli.ExitDatabase, stderr)
	}
}
