package commands_test

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
)

func TestWrongUsage(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for _, args := range [][]string{{"--only", "x"}, {"--skip", "x"}, {"--timeout", "1ms"}, {"tables"}, {}} {
		if code, stdout, stderr := commandtest.Call(t, append([]string{"doctor"}, args...)...); code != 2 || stdout != "" || stderr == "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, _ := commandtest.Call(t, "__complete", "doctor", "--only", ""); code != 0 || !strings.Contains(stdout, "snapshots\n") {
		t.Errorf("exit code %d, %q", code, stdout)
	}
	if code, _, stderr := commandtest.Call(t, "doctor", "--database-url", "postgres://nobody@127.0.0.1:1/none"); code != 3 || !strings.Contains(stderr, "connect") {
		t.Errorf("no database: exit code %d, %q", code, stderr)
	}
}
