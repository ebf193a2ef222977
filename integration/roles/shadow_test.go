package roles

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
)

// shadows are objects that an asker defines in its own schema and among its temporary
// objects, with the names of what the functions for askers use. Each tells who runs it.
func shadows(schema string) string {
	var all strings.Builder
	for _, a := range append(algorithms, "reservation", "lease") {
		fmt.Fprintf(&all, "CREATE TABLE %s.pglimit_%s (policy text, key text);\n", schema, a)
	}
	body := `LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'shadow run by %', current_user; END $$`
	for _, f := range []string{
		"floor(float8) RETURNS float8", "round(float8) RETURNS float8", "abs(float8) RETURNS float8", "octet_length(text) RETURNS int",
		"left(text, int) RETURNS text", "clock_timestamp() RETURNS timestamptz", "statement_timestamp() RETURNS timestamptz", "date_part(text, timestamptz) RETURNS float8", "to_timestamp(float8) RETURNS timestamptz",
		"string_to_array(text, text) RETURNS text[]", "gen_random_uuid() RETURNS uuid", "width_bucket(bigint, bigint[]) RETURNS int",
		"current_setting(text) RETURNS text", "set_config(text, text, bool) RETURNS text", "quote_literal(text) RETURNS text",
		"pglimit_rebase(float8[], float8) RETURNS float8[]", "pglimit_lower(float8[], int, float8, float8) RETURNS float8[]",
		"encode(bytea, text) RETURNS text", "decode(text, text) RETURNS bytea", "translate(text, text, text) RETURNS text", "repeat(text, int) RETURNS text",
		"convert_to(text, name) RETURNS bytea", "convert_from(bytea, name) RETURNS text",
		"plus(float8, float8) RETURNS float8", "mixed(bigint, float8) RETURNS float8", "less(float8, float8) RETURNS bool", "same(text, text) RETURNS bool",
	} {
		fmt.Fprintf(&all, "CREATE FUNCTION %s.%s %s;\n", schema, f, body)
	}
	for _, o := range []string{"+ (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.plus)", "* (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.plus)",
		"- (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.plus)", "/ (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.plus)",
		"* (LEFTARG = bigint, RIGHTARG = float8, FUNCTION = %[1]s.mixed)", "< (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.less)",
		"<= (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.less)", ">= (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.less)",
		"= (LEFTARG = text, RIGHTARG = text, FUNCTION = %[1]s.same)", "= (LEFTARG = float8, RIGHTARG = float8, FUNCTION = %[1]s.less)"} {
		if schema == "pg_temp" {
			continue // operators of pg_temp are named with their schema only
		}
		fmt.Fprintf(&all, "CREATE OPERATOR %[1]s."+o+";\n", schema)
	}
	return all.String()
}

// TestGrantsShadowedNames: an asker's tables, functions and operators are not used by the
// functions, whatever its search_path and settings.
func TestGrantsShadowedNames(t *testing.T) {
	t.Parallel()
	s := granted(t)
	bed.Exec(t, s.super, `CREATE SCHEMA theirs AUTHORIZATION `+s.roles.Askers[0])
	bed.Exec(t, s.super, fmt.Sprintf(`DO $$ BEGIN EXECUTE format('GRANT TEMPORARY ON DATABASE %%I TO %s', current_database()); END $$`, s.roles.Askers[0]))
	bed.Exec(t, s.asker, shadows("theirs"))
	bed.Exec(t, s.asker, `GRANT USAGE ON SCHEMA theirs TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA theirs TO PUBLIC`)
	calls := 0
	for _, path := range []string{"theirs, pg_catalog, limits", "pg_temp, theirs, pg_catalog", `theirs, pglimit_ask, pglimit, limits`, `""`} {
		pool := bed.Connect(t, s.askerURL, bed.Setting("search_path", path), bed.Setting("standard_conforming_strings", "off"), bed.Setting("transform_null_equals", "on"),
			bed.Setting("plan_cache_mode", "force_generic_plan"), func(c *pgxpool.Config) { c.MaxConns = 1 })
		bed.Exec(t, pool, `CREATE TEMP TABLE policy (); CREATE TEMP TABLE pglimit_ask_policy ();`+shadows("pg_temp"), pgx.QueryExecModeSimpleProtocol)
		for _, a := range algorithms {
			for _, call := range []string{`allow('%s', 'k')`, `allow_up_to('%s', 'k', 2.5)`, `charge('%s', 'k')`, `check('%s', 'k')`, `allow('%s', 'k', 9)`, `reserve('%s', 'r', 1, 60)`} {
				if a == "leaky_bucket_queue" && strings.HasPrefix(call, "reserve") {
					continue
				}
				calls++
				if _, err := pool.Exec(t.Context(), `SELECT pglimit_ask.`+fmt.Sprintf(call, a)); err != nil {
					t.Errorf("search_path %s: %s of %s: %v", path, call, a, err)
				}
			}
			if a != "leaky_bucket_queue" {
				for _, end := range []string{"settle(r, 0.5)", "cancel(r)"} {
					calls++
					id := ""
					if err := pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT reservation FROM pglimit_ask.reserve('%s', 'own', 1, 60)`, a)).Scan(&id); err != nil {
						t.Fatal(err)
					}
					if _, err := pool.Exec(t.Context(), `SELECT pglimit_ask.`+strings.Replace(end, "r", "'"+id+"'", 1)); err != nil {
						t.Errorf("search_path %s: %s of %s: %v", path, end, a, err)
					}
				}
			}
		}
	}
	for _, a := range algorithms {
		if n := bed.Value[int](t, s.owner, `SELECT count(*) FROM pglimit_`+a+` WHERE key = 'k'`); n != 1 {
			t.Errorf("%s has %d rows of the key, want 1", a, n)
		}
		if n := bed.Value[int](t, s.super, `SELECT count(*) FROM theirs.pglimit_`+a); n != 0 {
			t.Errorf("the asker's table %s has %d rows", a, n)
		}
	}
	if calls < 150 {
		t.Errorf("only %d calls", calls)
	}
	// The shadows work: without the search_path of the function one is run with the
	// owner's rights.
	bed.Exec(t, s.owner, `ALTER FUNCTION pglimit_ask.allow RESET search_path`)
	bed.Exec(t, s.owner, `GRANT USAGE ON SCHEMA limits TO `+s.roles.Askers[0])
	pool := bed.Connect(t, s.askerURL, bed.Setting("search_path", "theirs, pg_catalog, limits"))
	if _, err := pool.Exec(t.Context(), `SELECT pglimit_ask.allow('gcra', 'k')`); err == nil {
		t.Error("no shadow was run by a function without a search_path: this test tests nothing")
	} else if !strings.Contains(err.Error(), "shadow run by "+bed.RoleOf(t, s.ownerURL)) {
		t.Errorf("without a search_path: %v", err)
	}
}
