package roles

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
)

// shadows returns statements by which an asker defines objects in a schema, with the names of
// those that the functions for askers use. Each function fails and says as whom it runs.
func shadows(schema string) string {
	all := `CREATE TABLE %[1]s.pglimit_token_bucket (policy text, key text);`
	for _, f := range []string{"floor(float8) RETURNS float8", "octet_length(text) RETURNS int", "current_setting(text) RETURNS text", "gen_random_uuid() RETURNS uuid",
		"clock_timestamp() RETURNS timestamptz", "plus(float8, float8) RETURNS float8", "same(text, text) RETURNS bool"} {
		all += "CREATE FUNCTION %[1]s." + f + " LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'shadow run by %%', current_user; END $$;\n"
	}
	if schema != "pg_temp" { // whose operators are found only by its name
		all += `CREATE OPERATOR %[1]s.* (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.plus); CREATE OPERATOR %[1]s.= (LEFTARG = text, RIGHTARG = text, FUNCTION = %[1]s.same);`
	}
	return fmt.Sprintf(all, schema)
}

// TestGrantsShadowedNames: an asker's tables, functions and operators are not used by the
// functions, whatever its search_path and settings.
func TestGrantsShadowedNames(t *testing.T) {
	t.Parallel()
	s := granted(t)
	asker := s.roles.Askers[0]
	testworld.Exec(t, s.super, fmt.Sprintf(`CREATE SCHEMA theirs AUTHORIZATION %[1]s; DO $$ BEGIN EXECUTE format('GRANT TEMPORARY ON DATABASE %%I TO %[1]s', current_database()); END $$`, asker))
	testworld.Exec(t, s.asker, shadows("theirs")+`GRANT USAGE ON SCHEMA theirs TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA theirs TO PUBLIC`)
	for _, path := range []string{"theirs, pg_catalog, limits", "pg_temp, theirs, pg_catalog", `theirs, pglimit_ask, pglimit, limits`, `""`} {
		pool := testworld.Connect(t, s.askerURL, testworld.OneConnection, testworld.Setting("search_path", path), testworld.Setting("standard_conforming_strings", "off"),
			testworld.Setting("transform_null_equals", "on"), testworld.Setting("plan_cache_mode", "force_generic_plan"))
		testworld.Exec(t, pool, `CREATE TEMP TABLE policy (); CREATE TEMP TABLE pglimit_ask_policy ();`+shadows("pg_temp"))
		for _, call := range []string{`allow('gcra', 'k')`, `allow_up_to('gcra', 'k', 2.5)`, `charge('gcra', 'k')`, `check('gcra', 'k')`, `allow('gcra', 'k', 9)`,
			`settle(r.reservation, 0.5) FROM pglimit_ask.reserve('gcra', 'r', 1, 60) AS r`, `cancel(r.reservation) FROM pglimit_ask.reserve('gcra', 'r', 1, 60) AS r`} {
			if _, err := pool.Exec(t.Context(), `SELECT pglimit_ask.`+call, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Errorf("search_path %s: %s: %v", path, call, err)
			}
		}
	}
	if n := testworld.Value[int](t, s.owner, `SELECT count(*) FROM pglimit_token_bucket WHERE key = 'k'`) + testworld.Value[int](t, s.super, `SELECT count(*) FROM theirs.pglimit_token_bucket`); n != 1 {
		t.Errorf("%d rows of the key, want 1", n)
	}
	// All of them run with that search_path of theirs.
	if other := testworld.Value[string](t, s.super, `SELECT coalesce(string_agg(oid::regprocedure::text, ', '), '') FROM pg_proc
		WHERE pronamespace = 'pglimit_ask'::regnamespace AND proname NOT LIKE '\_%' AND NOT (prosecdef AND proconfig @> '{"search_path=limits, pg_temp"}')`); other != "" {
		t.Errorf("without the owner's search_path: %s", other)
	}
	// The shadows work: without its search_path a function runs one with the owner's rights.
	testworld.Exec(t, s.owner, `ALTER FUNCTION pglimit_ask.allow RESET search_path; GRANT USAGE ON SCHEMA limits TO `+asker)
	pool := testworld.Connect(t, s.askerURL, testworld.Setting("search_path", "theirs, pg_catalog, limits"))
	if _, err := pool.Exec(t.Context(), `SELECT pglimit_ask.allow('gcra', 'k')`); err == nil || !strings.Contains(err.Error(), "shadow run by "+testworld.RoleOf(t, s.ownerURL)) {
		t.Errorf("without a search_path: %v", err)
	}
}
