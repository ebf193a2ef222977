package cluster

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/installed"
)

// TestShardFunctions checks that shards.sql.tmpl is read whole: each statement creates one function.
func TestShardFunctions(t *testing.T) {
	t.Parallel()
	const home = `"it's $pglimit$"` // which ends no function's body
	statements := functionStatements(home)
	if len(statements) != len(shardFunctions()) || len(statements) != strings.Count(functionsSQL, "CREATE OR REPLACE FUNCTION") {
		t.Fatalf("%d statements, %d functions", len(statements), len(shardFunctions()))
	}
	for i, f := range shardFunctions() {
		if i >= len(installed.ShardFunctions) || installed.ShardFunctions[i] != f.name {
			t.Errorf("%s is not function %d of package installed", f.name, i)
		}
		if !strings.HasPrefix(statements[i], "CREATE OR REPLACE FUNCTION "+home+"."+f.name+"(") || !strings.HasSuffix(statements[i], "$_pglimit$") {
			t.Errorf("statement %d is not the whole of %s: %s", i, f.name, statements[i])
		}
		if strings.Count(statements[i], "$_pglimit$") != 2 || strings.Contains(statements[i], ":home") || strings.Contains(statements[i], ":'") {
			t.Errorf("%s has a name that was not put in: %s", f.name, statements[i])
		}
	}
	on := slices.IndexFunc(shardFunctions(), func(f shardFunction) bool { return f.name == "pglimit_on_shard" })
	if on < 0 || !shardFunctions()[on].delegated || shardFunctions()[on].types != "text, integer, text, text, text[]" {
		t.Errorf("pglimit_on_shard is read as %+v", shardFunctions())
	}
}

// TestShardFunctionsNamesSchemas: the functions of shards.sql.tmpl look no name up where another role may
// have put its own. Every operator, function, relation and type of a cast has its schema.
func TestShardFunctionsNamesSchemas(t *testing.T) {
	t.Parallel()
	bare := regexp.MustCompile(`[-+*/<>=~!@#%^&|?]+|\b(?:BETWEEN|LIKE|ILIKE|SIMILAR|NULLIF|DISTINCT|IN \()|::[^Q]\w*|\b(?:FROM|JOIN) [^Q(]\w*|\b[a-z]\w* ?\(`)
	text := functionsSQL
	for _, known := range []struct{ form, becomes string }{
		{`--.*`, ""}, {`:?'[^']*'`, "''"}, {`OPERATOR\(pg_catalog\.[^)]*\)`, ""}, {`(?:pg_catalog|:home)\.\w+`, "Q"},
		{`\b(?:ERRCODE|MESSAGE|enable_manual_changes_to_shards) =|:=|\bcoalesce\(|AS \w+ \(|search_path = pg_catalog, pg_temp`, ""},
	} {
		text = regexp.MustCompile(known.form).ReplaceAllString(text, known.becomes)
	}
	for _, name := range bare.FindAllString(text, -1) {
		t.Errorf("%q is looked up in the search_path", name)
	}
	if n := strings.Count(functionsSQL, " SET search_path = pg_catalog, pg_temp"); n != len(shardFunctions()) {
		t.Errorf("%d of %d functions have a search_path", n, len(shardFunctions()))
	}
}
