package pooler

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestProveThroughPooler: a proof works behind a pooler in transaction mode if its URL
// prepares no statements. It ends no connection, and leaves no rows although the pooler
// keeps its connections.
func TestProveThroughPooler(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pooled := startPgBouncer(t, address, 3)
	for _, c := range []struct{ mode, kill string }{
		{"exec", "--kill=false"}, {"cache_describe", "--kill=false"}, {"simple_protocol", "--kill=false"}, {"exec", "--kill"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, pooled+"&default_query_exec_mode="+c.mode, "prove", "--for", "700ms", "--workers", "6", c.kill, "--json")
		var p struct {
			Holds, Pooler bool
			Through       string
			Killed        int64
		}
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 || !p.Holds || !p.Pooler || p.Killed != 0 {
			t.Errorf("%s, %s: exit code %d, %v: %s%s", c.mode, c.kill, code, err, stdout, stderr)
		}
		if !strings.HasPrefix(p.Through, "PgBouncer") || !strings.HasSuffix(p.Through, "in transaction mode") || !strings.Contains(stderr, "through a pooler: "+p.Through) {
			t.Errorf("%s, %s: through %q, %s", c.mode, c.kill, p.Through, stderr)
		}
		testworld.NoRows(t, testworld.Connect(t, address))
	}
}

// TestProvePreparedThroughPooler: if the pooler separates prepared statements from their
// connections, a decision is made without them, with a warning. A proof, whose
// transactions fail, ends. Both name the setting to change, and no rows are left.
func TestProvePreparedThroughPooler(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pooled := startPgBouncer(t, address, 1)
	testworld.Pglimit(t, pooled, "allow", "--limit", "10", "k") // which prepares a statement
	const setting = "default_query_exec_mode=exec"
	code, stdout, stderr := testworld.Pglimit(t, pooled, "allow", "--limit", "10", "k")
	if code != 0 || !strings.HasPrefix(stdout, "allowed: 8 of 10") || strings.Count(stderr, setting) != 1 {
		t.Errorf("allow: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	for _, args := range []string{"prove --for 5s --workers 4 --kill=false", "prove --for 5s --workers 4"} {
		code, stdout, stderr := testworld.Pglimit(t, pooled, strings.Fields(args)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		if last := lines[len(lines)-1]; code != 3 || stdout != "" || strings.Count(last, setting) != 1 || strings.Contains(stderr, "clean up") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := testworld.Pglimit(t, pooled+"&default_query_exec_mode=cache_describe", "allow", "--limit", "10", "k"); code != 0 {
		t.Errorf("with cache_describe: exit code %d, %s%s", code, stdout, stderr)
	}
	if n := testworld.Value[int](t, testworld.Connect(t, address), `SELECT count(*) FROM pglimit_token_bucket WHERE policy <> 'cli'`); n != 0 {
		t.Errorf("it left %d rows", n)
	}
}
