package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/strangers"
)

// rights describes all rights of a role on what is pglimit's.
func rights(t *testing.T, pool *pgxpool.Pool, role string) string {
	t.Helper()
	return testworld.Value[string](t, pool, `
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT format('%s %s', c.oid::regclass, e.privilege_type) AS line FROM pg_class AS c, aclexplode(c.relacl) AS e WHERE e.grantee::regrole::text = quote_ident($1)
			UNION ALL SELECT format('%s %s', p.oid::regprocedure, e.privilege_type) FROM pg_proc AS p, aclexplode(p.proacl) AS e WHERE e.grantee::regrole::text = quote_ident($1)
			UNION ALL SELECT format('%s %s', n.oid::regnamespace, e.privilege_type) FROM pg_namespace AS n, aclexplode(n.nspacl) AS e WHERE e.grantee::regrole::text = quote_ident($1)
		) AS all_of_it`, role)
}

// TestGrantsHostileNames: names of roles and schemas are quoted in the statements, and the
// printed statements give the same rights as the applied ones.
func TestGrantsHostileNames(t *testing.T) {
	t.Parallel()
	for i, name := range []string{`a"; DROP TABLE x; --`, `o'neill`, "two\nlines; SELECT 1", "PUBLIC", "current_user", "user", `\$1 :name`, "Ünïcode", strings.Repeat("x", 63), "--", "a,b"} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			address := testworld.EmptyDatabase(t)
			super := testworld.Connect(t, address)
			testworld.Exec(t, super, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
			schema := pgx.Identifier{`Odd "Schema"; --`}.Sanitize()
			testworld.Exec(t, super, `CREATE SCHEMA `+schema)
			url := strings.ReplaceAll(testworld.WithSearchPath(t, address, schema), "+", "%20") // pgx leaves a plus as it is
			pool := testworld.Connect(t, url)
			testworld.UpTo(t, pool, migrate.Latest, testworld.AllUp)
			must.Succeed(t, sets.Functions.Up(t.Context(), pool))
			operator := "op " + name
			operator = operator[:min(len(operator), 63)]
			asker := name
			for _, role := range []string{asker, operator} {
				quoted := pgx.Identifier{role}.Sanitize()
				testworld.Exec(t, super, `CREATE ROLE `+quoted)
				t.Cleanup(func() {
					if _, err := testworld.ConnectOnce(t, address).Exec(context.Background(), `DROP OWNED BY `+quoted+`; DROP ROLE `+quoted); err != nil {
						t.Error(err)
					}
				})
			}
			code, printed, stderr := testworld.Pglimit(t, url, "migrate", "grants", "--asker", asker, "--operator", operator)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			if before := rights(t, super, asker) + rights(t, super, operator); before != "" {
				t.Errorf("without --apply:\n%s", before)
			}
			testworld.Exec(t, super, printed, pgx.QueryExecModeSimpleProtocol)
			a, o := rights(t, super, asker), rights(t, super, operator)
			if strings.Count(a, "\n") != 8 || !strings.Contains(a, "pglimit_ask USAGE") || strings.Count(o, "\n") < 80 {
				t.Errorf("an asker has:\n%s\nan operator has %d rights", a, strings.Count(o, "\n"))
			}
			var result struct {
				Applied              bool
				Statements, Warnings []string
			}
			_, limit, _ := strings.Cut(printed, "ALTER ROLE ")
			limit, _, _ = strings.Cut(limit, ";\nGRANT")
			for range 2 {
				testworld.PglimitJSON(t, &result, url, "migrate", "grants", "--apply", "--asker", asker, "--operator", operator)
				if !result.Applied || strings.Join(result.Statements, ";\n")+";\n" != strings.Replace(printed, "ALTER ROLE "+limit+";\n", "", 1) || len(result.Warnings) != 2 {
					t.Errorf("applied: %+v", result)
				}
				if rights(t, super, asker) != a || rights(t, super, operator) != o {
					t.Error("applying changed the printed rights")
				}
			}
		})
	}
}

// TestGrantsTakeAway: a role with the rights that were once documented for every caller
// becomes an asker, with what it was granted by column too.
func TestGrantsTakeAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	role := s.roles.Askers[0]
	testworld.Exec(t, s.owner, fmt.Sprintf(`GRANT USAGE ON SCHEMA limits, pglimit TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA limits TO %[1]s;
		GRANT SELECT (key) ON limits.pglimit_token_bucket TO %[1]s; GRANT ALL ON limits.pglimit_policy TO %[1]s;
		CREATE FUNCTION pglimit_shard(text, text[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; REVOKE ALL ON FUNCTION pglimit_shard FROM PUBLIC;
		GRANT EXECUTE ON FUNCTION pglimit_shard TO %[1]s`, role)) // as migrate distribute does
	works := 0
	for _, sql := range attacks() {
		if code, _ := try(t, s.asker, sql); code == "" {
			works++
		}
	}
	t.Logf("before, %d of %d attacks work", works, len(attacks()))
	if works < 100 {
		t.Errorf("before, only %d attacks work", works)
	}
	must.OK(grants.Apply(t.Context(), s.owner, s.roles))(t)
	for what, sql := range attacks() {
		if code, err := try(t, s.asker, sql); code != "42501" {
			t.Errorf("an asker may %s: %q, %v", what, code, err)
		}
	}
	if testworld.Value[bool](t, s.owner, `SELECT has_function_privilege($1, 'pglimit_shard(text, text[])', 'EXECUTE')`, role) {
		t.Error("an asker may hold a shard")
	}
}

// TestGrantsRefuse: a role that has its rights from elsewhere is refused, and nothing
// changes. The error names the next step.
func TestGrantsRefuse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	asker, operator, owner := s.roles.Askers[0], s.roles.Operators[0], testworld.RoleOf(t, s.ownerURL)
	group, mid := testworld.RoleOf(t, testworld.RuntimeRole(t, s.superURL)), testworld.RoleOf(t, testworld.RuntimeRole(t, s.superURL))
	database := testworld.Value[string](t, s.super, `SELECT current_database()`)
	must.OK(grants.Apply(t.Context(), s.owner, grants.Roles{Operators: []string{operator, group}}))(t)
	for _, c := range []struct{ make, undo, want string }{
		{`GRANT SELECT ON limits.pglimit_token_bucket TO PUBLIC`, `REVOKE SELECT ON limits.pglimit_token_bucket FROM PUBLIC`, `REVOKE ALL ON TABLE limits.pglimit_token_bucket FROM PUBLIC`},
		{`GRANT UPDATE (level) ON limits.pglimit_token_bucket TO PUBLIC`, `REVOKE UPDATE (level) ON limits.pglimit_token_bucket FROM PUBLIC`, `PUBLIC has UPDATE on limits.pglimit_token_bucket`},
		{`GRANT ` + group + ` TO ` + asker, `REVOKE ` + group + ` FROM ` + asker, `REVOKE ` + group + ` FROM ` + asker},
		{`ALTER ROLE ` + asker + ` NOINHERIT; GRANT ` + group + ` TO ` + asker, `ALTER ROLE ` + asker + ` INHERIT; REVOKE ` + group + ` FROM ` + asker, `is a member of role ` + group},
		{`GRANT ` + owner + ` TO ` + asker, `REVOKE ` + owner + ` FROM ` + asker, `is a member of role ` + owner + `, which owns`},
		{`ALTER ROLE ` + asker + ` SUPERUSER`, `ALTER ROLE ` + asker + ` NOSUPERUSER`, `ALTER ROLE ` + asker + ` NOSUPERUSER`},
		{`ALTER ROLE ` + asker + ` CREATEROLE`, `ALTER ROLE ` + asker + ` NOCREATEROLE`, `NOCREATEROLE`},
		{`ALTER ROLE ` + asker + ` REPLICATION`, `ALTER ROLE ` + asker + ` NOREPLICATION`, `NOREPLICATION`},
		{`ALTER ROLE ` + mid + ` SUPERUSER; GRANT ` + mid + ` TO ` + asker, `ALTER ROLE ` + mid + ` NOSUPERUSER; REVOKE ` + mid + ` FROM ` + asker, `is a member of role ` + mid + `, which has SUPERUSER: run REVOKE ` + mid + ` FROM ` + asker},
		{`ALTER ROLE ` + asker + ` NOINHERIT; ALTER ROLE ` + mid + ` CREATEROLE; GRANT ` + mid + ` TO ` + asker, `ALTER ROLE ` + asker + ` INHERIT; ALTER ROLE ` + mid + ` NOCREATEROLE; REVOKE ` + mid + ` FROM ` + asker, `which has CREATEROLE: run REVOKE ` + mid},
		{`GRANT ` + group + ` TO ` + mid + `; GRANT ` + mid + ` TO ` + asker, `REVOKE ` + group + ` FROM ` + mid + `; REVOKE ` + mid + ` FROM ` + asker, `is a member of role ` + mid + `, a member of ` + group + `, which has `},
		{`GRANT pg_read_server_files TO ` + asker, `REVOKE pg_read_server_files FROM ` + asker, `REVOKE pg_read_server_files FROM ` + asker},
		{`GRANT pg_signal_backend TO ` + asker, `REVOKE pg_signal_backend FROM ` + asker, `REVOKE pg_signal_backend FROM ` + asker},
		{`GRANT pg_monitor TO ` + mid + `; GRANT ` + mid + ` TO ` + asker, `REVOKE pg_monitor FROM ` + mid + `; REVOKE ` + mid + ` FROM ` + asker, `a member of pg_read_all_stats, which is predefined by PostgreSQL: run REVOKE ` + mid + ` FROM ` + asker},
		{`GRANT CREATE ON SCHEMA limits TO ` + asker, `REVOKE CREATE ON SCHEMA limits FROM ` + asker, `REVOKE CREATE ON SCHEMA limits FROM ` + asker},
		{`GRANT CREATE ON DATABASE ` + database + ` TO ` + asker, `REVOKE CREATE ON DATABASE ` + database + ` FROM ` + asker, `it has CREATE on DATABASE ` + database + `: run REVOKE CREATE ON DATABASE ` + database + ` FROM ` + asker},
		{`GRANT CREATE ON DATABASE ` + database + ` TO PUBLIC`, `REVOKE CREATE ON DATABASE ` + database + ` FROM PUBLIC`, `PUBLIC has CREATE on DATABASE ` + database + `: run REVOKE CREATE ON DATABASE ` + database + ` FROM PUBLIC`},
		{`GRANT CREATE ON DATABASE ` + database + ` TO ` + mid + `; GRANT ` + mid + ` TO ` + asker, `REVOKE CREATE ON DATABASE ` + database + ` FROM ` + mid + `; REVOKE ` + mid + ` FROM ` + asker, `which has CREATE on DATABASE ` + database + `: run REVOKE ` + mid + ` FROM ` + asker},
		{`ALTER DATABASE ` + database + ` OWNER TO ` + asker, `ALTER DATABASE ` + database + ` OWNER TO CURRENT_USER`, `it owns DATABASE ` + database + `: use another role`},
		{`ALTER FUNCTION pglimit_ask.cancel OWNER TO ` + asker, `ALTER FUNCTION pglimit_ask.cancel OWNER TO ` + owner, `lacks`},
		{`ALTER FUNCTION pglimit_ask.cancel SECURITY INVOKER`, `ALTER FUNCTION pglimit_ask.cancel SECURITY DEFINER`, `is not SECURITY DEFINER`},
	} {
		testworld.Exec(t, s.super, c.make)
		for _, do := range []func() (grants.Plan, error){
			func() (grants.Plan, error) { return grants.PlanFor(t.Context(), s.owner, s.roles) },
			func() (grants.Plan, error) { return grants.Apply(t.Context(), s.owner, s.roles) },
		} {
			if plan, err := do(); err == nil || !strings.Contains(err.Error(), c.want) || len(plan.Statements) > 0 {
				t.Errorf("%s: %v, want %q", c.make, err, c.want)
			}
		}
		if got := rights(t, s.super, asker); strings.Contains(got, "allow") {
			t.Errorf("%s: a refusal left:\n%s", c.make, got)
		}
		testworld.Exec(t, s.super, c.undo)
	}
	// What the owner cannot revoke is found afterwards, and all is rolled back.
	testworld.Exec(t, s.owner, `GRANT SELECT ON limits.pglimit_token_bucket TO `+operator+` WITH GRANT OPTION`)
	testworld.Exec(t, s.operator, `GRANT SELECT ON limits.pglimit_token_bucket TO `+asker)
	if _, err := grants.Apply(t.Context(), s.owner, s.roles); err == nil || !strings.Contains(err.Error(), "it has SELECT on limits.pglimit_token_bucket: another role") {
		t.Errorf("granted by another role: %v", err)
	}
	if got := rights(t, s.super, asker); strings.Contains(got, "EXECUTE") {
		t.Errorf("a refusal left:\n%s", got)
	}
	testworld.Exec(t, s.operator, `REVOKE SELECT ON limits.pglimit_token_bucket FROM `+asker)
	if _, err := grants.Apply(t.Context(), s.owner, s.roles); err != nil {
		t.Error(err)
	}
}

// TestGrantsErrors: what is missing is named, with the next step.
func TestGrantsErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	expect := func(pool *pgxpool.Pool, roles grants.Roles, is error, parts ...string) {
		t.Helper()
		for _, do := range []func() error{
			func() error { _, err := grants.PlanFor(t.Context(), pool, roles); return err },
			func() error { _, err := grants.Apply(t.Context(), pool, roles); return err },
		} {
			err := do()
			if err == nil || is != nil && !errors.Is(err, is) || slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(err.Error(), p) }) {
				t.Errorf("%+v: %v, want %q", roles, err, parts)
			}
		}
	}
	asker := s.roles.Askers
	expect(s.owner, grants.Roles{Askers: []string{"no such role"}}, grants.ErrRole, `no role "no such role"`, "CREATE ROLE")
	expect(s.owner, grants.Roles{Operators: []string{strings.Repeat("x", 64)}}, grants.ErrRole, "no role")
	expect(s.owner, grants.Roles{Operators: []string{"public"}}, grants.ErrRole, "PUBLIC is every role")
	expect(s.owner, grants.Roles{Askers: []string{""}}, grants.ErrRole, "pass the name of a role")
	expect(s.owner, grants.Roles{Askers: []string{"a\x00b"}}, grants.ErrRole, "pass the name of a role")
	expect(s.owner, grants.Roles{Askers: asker, Operators: asker}, grants.ErrRole, "choose one")
	expect(s.owner, grants.Roles{Askers: []string{testworld.RoleOf(t, s.ownerURL)}}, grants.ErrRole, "it owns")
	expect(testworld.Connect(t, testworld.WithSearchPath(t, s.ownerURL, "pg_catalog")), s.roles, nil, "run `pglimit migrate up`", "search_path")

	// Tables of another schema than the functions'.
	testworld.Exec(t, s.owner, `CREATE SCHEMA others`)
	others := testworld.Connect(t, testworld.WithSearchPath(t, s.ownerURL, "others"))
	testworld.UpTo(t, others, migrate.Latest, testworld.AllUp)
	expect(others, s.roles, nil, "works on the tables of another schema than others")

	testworld.Exec(t, s.owner, `DROP VIEW limits.pglimit_keys`)
	expect(s.owner, s.roles, nil, "no view pglimit_keys", "migrate up")
	must.OK(sets.Functions.Down(t.Context(), s.owner, 0))(t)
	expect(others, grants.Roles{Askers: asker}, nil, "run `pglimit migrate up --functions`")

	// Without the rights to grant.
	if _, err := grants.Apply(t.Context(), testworld.Connect(t, testworld.WithSearchPath(t, s.operatorURL, "public")), grants.Roles{}); err == nil {
		t.Error("without tables in sight there is no error")
	}
	testworld.Exec(t, others, `GRANT USAGE ON SCHEMA others TO `+s.roles.Operators[0])
	if _, err := grants.Apply(t.Context(), testworld.Connect(t, testworld.WithSearchPath(t, s.operatorURL, "others")), grants.Roles{Operators: s.roles.Operators}); err == nil || !strings.Contains(err.Error(), "connect as the owner") {
		t.Errorf("not as the owner: %v", err)
	}
	// In a schema where others may create objects.
	testworld.Exec(t, s.super, `GRANT CREATE ON SCHEMA others TO PUBLIC`)
	expect(others, grants.Roles{Askers: asker}, strangers.ErrExposed, "REVOKE CREATE ON SCHEMA others FROM PUBLIC")
	for args, code := range map[string]int{"migrate grants --asker nobody": 2, "migrate grants": 2, "migrate grants --functions --asker x": 2} {
		if got, _, stderr := testworld.Pglimit(t, s.ownerURL, strings.Fields(args)...); got != code {
			t.Errorf("%s: exit code %d, want %d: %s", args, got, code, stderr)
		}
	}
}
