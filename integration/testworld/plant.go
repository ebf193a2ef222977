package testworld

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/pglimittest"
)

// plantStrangers defines, in schema public, every operator and function that PostgreSQL
// would prefer to a built-in one because its argument types match exactly. $names are
// functions that pglimit's SQL calls. Every planted function fails, and its error names
// the call.
//
// An operator's function has the operator's name, so that "permission denied for function
// X" names it as well.
const plantStrangers = `
DO $plant$
DECLARE
    operators text[] := '{+,-,*,/,%%,^,<,<=,=,>=,>,<>,||,~,~~}';
    types regtype[] := '{smallint,integer,bigint,real,float8,numeric,text,varchar,name,"\"char\"",bool,timestamptz,interval,oid,smallint[],integer[],bigint[],float8[],numeric[],text[]}';
    few regtype[] := '{integer,bigint,float8,numeric,text,varchar,bool}'; -- for functions of three arguments
    names text[] := '{%s}';
    planted record;
    body text;
    yields text;
BEGIN
    FOR planted IN
        SELECT o AS operator, l AS left, r AS right, format('%%s(%%s,%%s)', o, l, r) AS name
        FROM unnest(operators) AS o, unnest(types) AS l, unnest(types) AS r
        WHERE NOT EXISTS (SELECT FROM pg_operator AS p WHERE p.oprnamespace = 'pg_catalog'::regnamespace AND p.oprname = o AND p.oprleft = l AND p.oprright = r)
        UNION ALL
        SELECT '-', NULL, r, format('-(%%s)', r)
        FROM unnest(types) AS r
        WHERE NOT EXISTS (SELECT FROM pg_operator AS p WHERE p.oprnamespace = 'pg_catalog'::regnamespace AND p.oprname = '-' AND p.oprleft = 0 AND p.oprright = r)
    LOOP
        yields := CASE WHEN planted.operator IN ('<', '<=', '=', '>=', '>', '<>', '~', '~~') THEN 'bool'
                       WHEN planted.left::text LIKE '%%[]' THEN planted.left::text
                       WHEN planted.right::text LIKE '%%[]' THEN planted.right::text
                       WHEN planted.operator = '||' THEN 'text'
                       WHEN 'timestamptz'::regtype IN (planted.left, planted.right) THEN 'timestamptz'
                       WHEN 'interval'::regtype IN (planted.left, planted.right) THEN 'interval'
                       WHEN 'float8'::regtype IN (planted.left, planted.right) OR 'real'::regtype IN (planted.left, planted.right) THEN 'float8'
                       WHEN 'numeric'::regtype IN (planted.left, planted.right) THEN 'numeric'
                       ELSE 'bigint' END;
        EXECUTE format('CREATE FUNCTION public.%%I(%%s) RETURNS %%s LANGUAGE plpgsql AS %%L', planted.name, concat_ws(',', planted.left, planted.right), yields,
            format('BEGIN RAISE EXCEPTION %%L; END', 'a stranger''s ' || replace(planted.name, '%%', '%%%%')));
        EXECUTE format('CREATE OPERATOR public.%%s (%%s RIGHTARG = %%s, FUNCTION = public.%%I)', planted.operator,
            'LEFTARG = ' || planted.left || ',', planted.right, planted.name);
    END LOOP;

    FOR planted IN
        WITH ours AS (
            SELECT DISTINCT ON (p.proname, a.n) p.proname AS name, a.n, p.prokind = 'a' AS aggregate, t.typname AS yields
            FROM pg_proc AS p JOIN pg_type AS t ON t.oid = p.prorettype
            CROSS JOIN LATERAL generate_series(p.pronargs, CASE WHEN p.provariadic <> 0 THEN 3 ELSE p.pronargs END) AS a(n)
            WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY (names) AND a.n BETWEEN 1 AND 3
              AND p.prokind IN ('f', 'a') AND t.typname NOT IN ('internal', 'record', 'trigger', 'void')
            ORDER BY p.proname, a.n, t.typname
        ), arguments AS (
            SELECT 1 AS n, ARRAY[x] AS types FROM unnest(types) AS x
            UNION ALL SELECT 2, ARRAY[x, y] FROM unnest(types) AS x, unnest(types) AS y
            UNION ALL SELECT 3, ARRAY[x, y, z] FROM unnest(few) AS x, unnest(few) AS y, unnest(few) AS z
        )
        SELECT o.*, a.types, format('%%s(%%s)', o.name, array_to_string(a.types, ',')) AS signature,
               (SELECT t FROM unnest(a.types) WITH ORDINALITY AS u(t, i) ORDER BY t::text NOT LIKE '%%[]', i LIMIT 1)::text AS main
        FROM ours AS o JOIN arguments AS a USING (n)
        WHERE NOT EXISTS (SELECT FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = o.name
                          AND p.proargtypes::oid[] = a.types::oid[])
    LOOP
        yields := CASE WHEN planted.yields IN ('anyarray', 'anycompatiblearray') THEN rtrim(planted.main, '[]') || '[]'
                       WHEN planted.yields LIKE 'any%%' THEN rtrim(planted.main, '[]')
                       ELSE planted.yields END;
        body := format('BEGIN RAISE EXCEPTION %%L; END', 'a stranger''s ' || planted.signature);
        IF planted.aggregate THEN
            EXECUTE format('CREATE FUNCTION public.%%I(state %%s, %%s) RETURNS %%s LANGUAGE plpgsql AS %%L',
                planted.signature, yields, array_to_string(planted.types, ','), yields, body);
            EXECUTE format('CREATE AGGREGATE public.%%I(%%s) (SFUNC = public.%%I, STYPE = %%s)',
                planted.name, array_to_string(planted.types, ','), planted.signature, yields);
        ELSE
            EXECUTE format('CREATE FUNCTION public.%%I(%%s) RETURNS %%s LANGUAGE plpgsql AS %%L',
                planted.name, array_to_string(planted.types, ','), yields, body);
        END IF;
    END LOOP;
END
$plant$`

// planted is a database in whose schema public a role with only the CREATE right planted
// objects before pglimit's tables and SQL functions were created. The test's role now owns
// all planted objects, and no other role may execute them.
var planted = sync.OnceValues(func() (*pglimittest.Template, error) {
	return Server().Template(context.Background(), "planted", plant)
})

func plant(ctx context.Context, pool *pgxpool.Pool) (err error) {
	var stranger string
	if err := pool.QueryRow(ctx, `SELECT 'pglimit_stranger_' || md5(random()::text || clock_timestamp())`).Scan(&stranger); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, fmt.Sprintf(`CREATE ROLE %s; GRANT CREATE, USAGE ON SCHEMA public TO %[1]s; GRANT %[1]s TO CURRENT_USER`, stranger)); err != nil {
		return err
	}
	names, err := called()
	if err != nil {
		return err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, strings.Join([]string{
		"SET search_path = pg_catalog; SET check_function_bodies = off; SET ROLE " + stranger,
		"ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM public",
		fmt.Sprintf(plantStrangers, strings.Join(names, ",")),
		"RESET ROLE",
		fmt.Sprintf("REASSIGN OWNED BY %s TO CURRENT_USER; DROP OWNED BY %[1]s; DROP ROLE %[1]s", stranger),
	}, ";\n"))
	_ = conn.Conn().Close(ctx) // it has settings
	conn.Release()
	if err != nil {
		return fmt.Errorf("plant: %w", err)
	}
	if err := sets.Tables.Up(ctx, pool); err != nil {
		return err
	}
	return sets.Functions.Up(ctx, pool)
}

var calls = regexp.MustCompile(`\b([a-z_][a-z0-9_]*)\s*\(`)

// called lists every word before a parenthesis in pglimit's SQL.
func called() ([]string, error) {
	var text strings.Builder
	for _, s := range []*migrate.Set{sets.Tables, sets.Functions} {
		if err := s.Print(&text, false); err != nil {
			return nil, err
		}
	}
	queries, err := QueryTexts()
	if err != nil {
		return nil, err
	}
	for _, query := range queries {
		text.WriteString(query)
	}
	names := map[string]bool{}
	for _, m := range calls.FindAllStringSubmatch(strings.ToLower(text.String()), -1) {
		names[m[1]] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// PlantedDatabase creates a database with planted objects and pglimit. It returns a URL
// whose sessions find both, and one whose sessions find neither.
func PlantedDatabase(t *testing.T) (address, aside string) {
	t.Helper()
	template, err := planted()
	if err != nil {
		t.Fatal(err)
	}
	address = template.New(t)
	return WithSearchPath(t, address, "public"), WithSearchPath(t, address, "pg_catalog")
}
