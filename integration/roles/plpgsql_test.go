package roles

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// TestStrangersInPLpgSQL is TestStrangersInStatements for the expressions of PL/pgSQL
// functions, in all their branches. Their statements are those of db, which are tested
// there.
func TestStrangersInPLpgSQL(t *testing.T) {
	t.Parallel()
	p := newProbe(t)
	rows := must.OK(p.owner.Query(t.Context(), `
		SELECT p.proname, p.prosrc, p.proargnames, ARRAY(SELECT format_type(a, NULL) FROM unnest(p.proargtypes) AS a)
		FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
		WHERE l.lanname = 'plpgsql' AND p.pronamespace IN ('pglimit'::regnamespace, 'pglimit_ask'::regnamespace) ORDER BY 1`))(t)
	functions := must.OK(pgx.CollectRows(rows, func(row pgx.CollectableRow) (f plpgsql, err error) {
		return f, row.Scan(&f.name, &f.source, &f.arguments, &f.types)
	}))(t)
	found := map[string][]string{} // planted object: expressions, with one function each
	seen := map[string]bool{}      // functions have most expressions in common
	for _, f := range functions {
		for _, expression := range f.expressions(t) {
			query := f.query(expression)
			if seen[query] {
				continue
			}
			seen[query] = true
			for _, used := range p.uses(t, query, f.types...) {
				found[used] = append(found[used], fmt.Sprintf("%s: %s", f.name, expression))
			}
		}
	}
	if len(functions) < 35 || len(seen) < 250 {
		t.Errorf("only %d functions and %d expressions", len(functions), len(seen))
	}
	left := testworld.Value[string](t, p.owner, `SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '')
		FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang JOIN pg_namespace AS n ON n.oid = p.pronamespace
		WHERE (n.nspname IN ('pglimit', 'pglimit_ask') OR n.nspname = 'public' AND p.proname LIKE 'pglimit\_%')
		  AND l.lanname || ' ' || n.nspname NOT IN ('plpgsql pglimit', 'plpgsql pglimit_ask', 'sql pglimit', 'sql public')
		  AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(p.proconfig, '{}'))`)
	if left != "" { // neither read here, nor by TestStrangersInSQLFunctions, nor safe by itself
		t.Errorf("no test reads %s", left)
	}
	for _, used := range slices.Sorted(maps.Keys(found)) {
		t.Errorf("%s is used by\n%s", used, strings.Join(found[used], "\n"))
	}
}

// plpgsql is a function of schema pglimit or pglimit_ask.
type plpgsql struct {
	name, source     string
	arguments, types []string
}

var (
	note        = regexp.MustCompile(`(?m)^\s*--.*$| -- .*$`)
	declaration = regexp.MustCompile(`(?s)^(\w+) (?:CONSTANT )?([\w.\[\]]+)(?: := (.*))?;$`)
	option      = regexp.MustCompile(`\b(MESSAGE|HINT) = `)
	field       = regexp.MustCompile(`\b(request|asked|read|due|answer|policy|held)\.(\w+)`)
)

// parts are the words that begin a line of PL/pgSQL, and where its expressions are.
var parts = []*regexp.Regexp{
	regexp.MustCompile(`(?s)^(?:IF|ELSIF) (.*) THEN$`),
	regexp.MustCompile(`(?s)^(?:EXIT|CONTINUE) WHEN (.*);$`),
	regexp.MustCompile(`(?s)^WHILE (.*) LOOP$`),
	regexp.MustCompile(`(?s)^FOR (?:i|try) IN (.*) \.\. (.*) LOOP$`),
	regexp.MustCompile(`(?s)^FOREACH \w+ IN ARRAY (.*) LOOP$`),
	regexp.MustCompile(`(?s)^PERFORM (.*);$`),
	regexp.MustCompile(`(?s)^RETURN (?:NEXT )?(.*);$`),
	regexp.MustCompile(`(?s)^RAISE \w+ USING (.*);$`),
	regexp.MustCompile(`(?s)^[\w.\[\]]+ := (.*);$`),
	regexp.MustCompile(`(?s)^INSERT INTO \w+\s.*\sON CONFLICT\s.*;$`), // of db
	regexp.MustCompile(`(?s)^INSERT INTO \w+\s+\([^)]*\)\s+VALUES \((.*)\);$`),
	regexp.MustCompile(`(?s)^(?:ELSE|LOOP|EXIT;|NULL;|RETURN;|END IF;|END LOOP;|EXCEPTION WHEN [\w ]+ THEN|END;)$`),
	regexp.MustCompile(`(?s)^(?:INSERT|UPDATE|DELETE|SELECT|WITH) .*;$`),
}

// split returns the function's declarations and the lines of its body. It joins continued
// lines.
func (f plpgsql) split() (declared, body []string) {
	into := &declared
	open := ""
	for line := range strings.Lines(note.ReplaceAllString(f.source, "")) {
		line = strings.TrimSpace(line)
		switch {
		case open == "" && (line == "" || line == "DECLARE" || line == "END" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "<<")):
			continue
		case line == "BEGIN":
			into = &body
			continue
		}
		open = strings.TrimSpace(open + "\n" + line)
		if strings.HasSuffix(line, ";") || strings.HasSuffix(line, " THEN") || strings.HasSuffix(line, "LOOP") || open == "ELSE" {
			*into = append(*into, open)
			open = ""
		}
	}
	return declared, body
}

// expressions lists what the function computes outside statements.
func (f plpgsql) expressions(t *testing.T) (all []string) {
	t.Helper()
	declared, body := f.split()
	for _, line := range declared {
		m := declaration.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s declares %q", f.name, line)
		} else if m[3] != "" {
			all = append(all, m[3])
		}
	}
	for _, line := range body {
		known := false
		for _, part := range parts {
			if m := part.FindStringSubmatch(line); m != nil {
				known = true
				for _, expression := range m[1:] {
					all = append(all, option.ReplaceAllString(expression, ""))
				}
				break
			}
		}
		if !known {
			t.Errorf("%s has a line that this test cannot read: %s", f.name, line)
		}
	}
	return all
}

// query returns a statement that computes an expression from columns named after the
// function's variables and arguments. They are NULL, but the planner does not know that.
func (f plpgsql) query(expression string) string {
	declared, _ := f.split()
	variables := []string{"NULL::integer AS i", "NULL::integer AS try", "NULL::bool AS found"}
	var named []string
	for _, line := range declared {
		if m := declaration.FindStringSubmatch(line); m != nil {
			variables = append(variables, fmt.Sprintf("NULL::%s AS %s", m[2], m[1]))
			named = append(named, m[1])
		}
	}
	for i, name := range f.arguments {
		if !slices.Contains(named, name) { // a variable hides an argument of its name
			variables = append(variables, fmt.Sprintf("NULL::%s AS %s", f.types[i], name))
		}
	}
	return fmt.Sprintf("SELECT %s FROM (SELECT %s OFFSET 0) AS variables", field.ReplaceAllString(expression, "($1).$2"), strings.Join(variables, ", "))
}
