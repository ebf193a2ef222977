package roles

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

// TestStrangersInStatements: no statement uses an operator or function that another role
// has planted in a schema of the search_path. Planning a statement looks up each of them,
// and starting it checks the right to execute each, in every branch.
func TestStrangersInStatements(t *testing.T) {
	t.Parallel()
	p := newProbe(t)
	texts, err := testworld.QueryTexts()
	if err != nil || len(texts) < 80 {
		t.Fatalf("%d statements, %v", len(texts), err)
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		p.report(t, name, texts[name])
	}
}

// TestStrangersInSQLFunctions is the same for functions of language SQL.
func TestStrangersInSQLFunctions(t *testing.T) {
	t.Parallel()
	p := newProbe(t)
	rows := must.OK(p.owner.Query(t.Context(), `
		SELECT p.oid::regprocedure::text, p.prosrc, ARRAY(SELECT replace(a::regtype::text, 'anyarray', 'bigint[]') FROM unnest(p.proargtypes) AS a)
		FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
		WHERE l.lanname = 'sql' AND (p.pronamespace = 'pglimit'::regnamespace OR p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'pglimit\_%')`))(t)
	var name, body string
	var types []string
	bodies := map[string]string{}
	arguments := map[string][]string{}
	if _, err := pgx.ForEachRow(rows, []any{&name, &body, &types}, func() error {
		bodies[name], arguments[name] = body, slices.Clone(types)
		return nil
	}); err != nil || len(bodies) < 3 {
		t.Fatalf("%d functions, %v", len(bodies), err)
	}
	names := regexp.MustCompile(`\b[a-z_]+\b`)
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		declared := testworld.Value[[]string](t, p.owner, `SELECT coalesce(proargnames, '{}') FROM pg_proc WHERE oid = $1::text::regprocedure`, name)
		text := names.ReplaceAllStringFunc(bodies[name], func(word string) string {
			if at := slices.Index(declared, word); at >= 0 && !strings.Contains(bodies[name], "$") {
				return fmt.Sprintf("$%d", at+1)
			}
			return word
		})
		p.report(t, name, text, arguments[name]...)
	}
}

// TestStrangersInDefinitions: no view, index, default or constraint depends on a
// planted object.
func TestStrangersInDefinitions(t *testing.T) {
	t.Parallel()
	_, aside := testworld.PlantedDatabase(t)
	rows := must.OK(testworld.Connect(t, aside).Query(t.Context(), `
		SELECT pg_describe_object(d.classid, d.objid, 0) || ' uses ' || pg_describe_object(d.refclassid, d.refobjid, 0)
		FROM pg_depend AS d
		LEFT JOIN pg_proc AS p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
		LEFT JOIN pg_operator AS o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
		WHERE d.classid NOT IN ('pg_operator'::regclass, 'pg_proc'::regclass)
		  AND coalesce(p.pronamespace, o.oprnamespace) = 'public'::regnamespace AND coalesce(p.proname, '') NOT LIKE 'pglimit\_%'
		ORDER BY 1`))(t)
	found := must.OK(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	for _, line := range found {
		t.Error(line)
	}
}

// TestStrangersInDown undoes all migrations with all planted objects in the search_path.
// The other tests' database was migrated there.
func TestStrangersInDown(t *testing.T) {
	t.Parallel()
	address, _ := testworld.PlantedDatabase(t)
	pool := testworld.Connect(t, address)
	if _, err := sets.Functions.Down(t.Context(), pool, 0); err != nil {
		t.Error(err)
	}
	testworld.StepsDown(t, pool, 0, testworld.AllDown)
}

// probe returns the planted objects that a statement uses: it explains the statement as a
// role that may not execute them, and grants the reported ones one at a time.
type probe struct {
	owner *pgxpool.Pool // its sessions do not find the planted objects
	conn  *pgx.Conn
	role  string
}

func newProbe(t *testing.T) *probe {
	t.Helper()
	_, aside := testworld.PlantedDatabase(t)
	p := &probe{owner: testworld.Connect(t, aside)}
	role := testworld.WithSearchPath(t, testworld.RuntimeRole(t, aside), "public")
	p.role = testworld.RoleOf(t, role)
	testworld.Exec(t, p.owner, fmt.Sprintf(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %[1]s; GRANT USAGE ON SCHEMA pglimit, pglimit_ask TO %[1]s; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pglimit_ask TO %[1]s`, p.role))
	p.conn = testworld.ConnectOnce(t, role)
	for _, set := range []string{"SET plan_cache_mode = force_generic_plan", "SET enable_seqscan = off"} {
		must.OK(p.conn.Exec(t.Context(), set))(t)
	}
	// Without a stranger's right to execute, a planted operator is found.
	if used := p.uses(t, "SELECT 1::bigint * 1::float8"); !slices.Equal(used, []string{"*(bigint,double precision)"}) {
		t.Fatalf("bigint * float8 uses %q", used)
	}
	return p
}

// report fails the test with all planted objects that a statement uses.
func (p *probe) report(t *testing.T, name, text string, types ...string) {
	t.Helper()
	if used := p.uses(t, text, types...); len(used) > 0 {
		t.Errorf("%s: %s", name, strings.Join(used, ", "))
	}
}

var (
	parameter = regexp.MustCompile(`\$(\d+)`)
	denial    = regexp.MustCompile(`^permission denied for (?:function|aggregate) (.*)$`)
)

// uses lists the planted objects that a statement uses. If that prevents planning, the
// list ends with the error.
func (p *probe) uses(t *testing.T, text string, types ...string) (used []string) {
	t.Helper()
	run := func(sql string) error {
		_, err := p.conn.PgConn().Exec(t.Context(), sql).ReadAll()
		return err
	}
	parameters := 0
	for _, m := range parameter.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		parameters = max(parameters, n)
	}
	prepare, execute := "PREPARE probe AS "+text, "EXPLAIN EXECUTE probe"
	if parameters > 0 {
		execute += "(" + strings.Repeat("NULL, ", parameters-1) + "NULL)"
	}
	if len(types) > 0 {
		prepare = "PREPARE probe (" + strings.Join(types, ", ") + ") AS " + text
		execute = "EXPLAIN EXECUTE probe(" + strings.Repeat("NULL, ", len(types)-1) + "NULL)"
	}
	if err := run(prepare); err != nil {
		return []string{err.Error()}
	}
	defer func() {
		must.Succeed(t, run("DEALLOCATE probe"))
		p.allow(t, "REVOKE", "FROM", used)
	}()
	for {
		err := run(execute)
		var answer *pgconn.PgError
		switch {
		case err == nil:
			return used
		case !errors.As(err, &answer):
			t.Fatal(err)
		}
		refused := denial.FindStringSubmatch(answer.Message)
		if refused == nil || slices.Contains(used, refused[1]) {
			return append(used, err.Error())
		}
		used = append(used, refused[1])
		p.allow(t, "GRANT", "TO", used[len(used)-1:])
	}
}

// allow grants or revokes the right to execute all planted functions of a name.
func (p *probe) allow(t *testing.T, verb, preposition string, names []string) {
	t.Helper()
	for _, name := range names {
		sql := testworld.Value[string](t, p.owner, `SELECT coalesce(string_agg(format('%s EXECUTE ON ROUTINE %s %s %I', $1::text, oid::regprocedure, $2::text, $3::text), '; '), '')
			FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname = $4`, verb, preposition, p.role, name)
		testworld.Exec(t, p.owner, sql)
	}
}
