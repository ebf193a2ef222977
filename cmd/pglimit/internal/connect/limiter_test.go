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

// TestOpenPasswordStaysSecret: no error quotes the password, even of a connection
// string with broken syntax.
func TestOpenPasswordStaysSecret(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]int{
		"postgres://app:hunter2@127.0.0.1:1/shop":                         cli.ExitDatabase,
		"postgres://app@127.0.0.1:1/shop?password=hunter2":                cli.ExitDatabase,
		"host=127.0.0.1 port=1 user=app password=hunter2":                 cli.ExitDatabase,
		"postgres://app:hunter2@127.0.0.1:none/shop":                      cli.ExitUsage,
		"postgres://app:hunter2@127.0.0.1:1/shop?sslmode=none":            cli.ExitUsage,
		"postgres://app:hunter2%zz@127.0.0.1:1/shop":                      cli.ExitUsage,
		"postgres://app:hun ter2@127.0.0.1:x/hunter2":                     cli.ExitUsage,
		"postgres://app:`: hunter2@127.0.0.1:x/":                          cli.ExitUsage,
		"mysql://app:hunter2@127.0.0.1:1/shop":                            cli.ExitUsage,
		"app:hunter2@127.0.0.1":                                           cli.ExitUsage,
		"host=127.0.0.1 password='hunter2":                                cli.ExitUsage,
		"postgres://app:hunter2@127.0.0.1:1/shop?connect_timeout=hunter2": cli.ExitUsage,
	} {
		code, stdout, stderr := commandtest.Call(t, "migrate", "status", "--database-url", address)
		if code != want || stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q; want %d and nothing", address, code, stdout, want)
		}
		if strings.Contains(stderr, "hunter2") || strings.Contains(stderr, "ter2") {
			t.Errorf("%s: stderr shows the password: %s", address, stderr)
		}
		if last := strings.TrimSpace(stderr[strings.LastIndex(strings.TrimSpace(stderr), "\n")+1:]); !strings.HasPrefix(last, "pglimit: ") {
			t.Errorf("%s: stderr ends in %q", address, last)
		}
	}
}

func TestOpenNamesTheDatabase(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://app:hunter2@127.0.0.1:1/shop":      "database: shop at 127.0.0.1:1 as app\n",
		"postgres://app@[::1]:1/shop":                  "database: shop at [::1]:1 as app\n",
		"host=/nonexistent port=6543 user=app":         "database: app at /nonexistent port 6543 as app\n",
		"postgres://app:hunter2@127.0.0.1:1,[::1]:1/s": "database: s at 127.0.0.1:1 as app\n",
	} {
		_, _, stderr := commandtest.Call(t, "migrate", "up", "--verbose", "--database-url", address)
		if first := stderr[:strings.Index(stderr, "\n")+1]; first != want {
			t.Errorf("%s: got %q, want %q", address, first, want)
		}
		if strings.Count(stderr, "\n") != 2 {
			t.Errorf("%s: stderr has other than two lines: %q", address, stderr)
		}
	}
}
