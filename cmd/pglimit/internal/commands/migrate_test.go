package commands_test

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/migrations"
)

func TestMigratePrintAndExport(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"migrate", "print"}, {"migrate", "print", "--down"}} {
		code, text, stderr := commandtest.Call(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(text, "pglimit_token_bucket") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, text, stderr)
		}
		var result struct{ Direction, SQL string }
		commandtest.Decode(t, &result, append(args, "--json")...)
		if result.SQL != text || result.Direction != map[bool]string{false: "up", true: "down"}[len(args) == 3] {
			t.Errorf("%q: the JSON differs from the text: %+v", args, result)
		}
	}
	for _, args := range [][]string{{"migrate", "print", "--functions"}, {"migrate", "print", "--down", "--functions"}} {
		code, text, stderr := commandtest.Call(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(text, "pglimit._counter_at") && !strings.Contains(text, "'_counter_at'") || strings.Contains(text, "CREATE TABLE pglimit_token_bucket") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, text, stderr)
		}
	}
	functions := t.TempDir()
	if code, text, stderr := commandtest.Call(t, "migrate", "export", "--functions", functions); code != 0 || stderr != "" || !strings.HasSuffix(text, "00002_pglimit_functions_callable.sql\n") {
		t.Errorf("export --functions: exit code %d, stdout %q, stderr %q", code, text, stderr)
	}
	dir := t.TempDir()
	code, text, stderr := commandtest.Call(t, "migrate", "export", dir)
	ours, err := fs.Glob(migrations.FS(), "*.sql")
	if err != nil || code != 0 || stderr != "" || strings.Count(text, dir) != len(ours) {
		t.Errorf("export: exit code %d, stdout %q, stderr %q", code, text, stderr)
	}
	code, text, _ = commandtest.Call(t, "migrate", "export", dir)
	if code != 0 || !strings.HasPrefix(text, "nothing to do") {
		t.Errorf("the second export: exit code %d, stdout %q", code, text)
	}
	var result struct{ Files []string }
	commandtest.Decode(t, &result, "migrate", "export", dir, "--json")
	if result.Files == nil || len(result.Files) != 0 {
		t.Errorf("the third export: %+v, want an empty list", result)
	}
}
