package migrations

import (
	"slices"
	"strings"
	"testing"
)

// TestRouting checks that shards.sql is read whole: each statement creates one function.
func TestRouting(t *testing.T) {
	t.Parallel()
	statements := routingStatements()
	if len(statements) != len(routing()) || len(statements) != strings.Count(routingSQL, "CREATE OR REPLACE FUNCTION") {
		t.Fatalf("%d statements, %d functions", len(statements), len(routing()))
	}
	for i, f := range routing() {
		if !strings.HasPrefix(statements[i], "CREATE OR REPLACE FUNCTION "+f.name+"(") || !strings.HasSuffix(statements[i], "$pglimit$") {
			t.Errorf("statement %d is not the whole of %s: %s", i, f.name, statements[i])
		}
		if !strings.Contains(statements[i], "SET search_path FROM CURRENT") {
			t.Errorf("%s runs with its caller's search_path", f.name)
		}
	}
	on := slices.IndexFunc(routing(), func(f routed) bool { return f.name == "pglimit_on_shard" })
	if on < 0 || !routing()[on].delegated || routing()[on].types != "text, integer, text, text, text[]" {
		t.Errorf("pglimit_on_shard is read as %+v", routing())
	}
}
