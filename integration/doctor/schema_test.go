package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/migrations"
)

func TestDoctorTables(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := bed.EmptyDatabase(t)
	pool := bed.Connect(t, address)
	expect(t, pool, "tables", doctor.Fail, "no schema of the search_path (public)", "pglimit migrate up")
	for _, name := range []string{"migrations", "due", "janitor", "policies", "hot", "bloat", "future", "unlogged", "autovacuum"} {
		expect(t, pool, name, doctor.Fail, "not checked", "pglimit migrate up")
	}
	bed.Exec(t, pool, "CREATE SCHEMA limits")
	limits := bed.Connect(t, bed.WithSearchPath(t, address, "limits"))
	if err := migrations.Up(ctx, limits); err != nil {
		t.Fatal(err)
	}
	expect(t, limits, "tables", doctor.OK, "in schema limits")
	expect(t, pool, "tables", doctor.Fail, "in schema limits, which is not in the search_path", "?search_path=limits")
	role := bed.Connect(t, bed.WithSearchPath(t, bed.RuntimeRole(t, address), "limits"))
	c := expect(t, role, "tables", doctor.Fail, "not open to role", "GRANT USAGE ON SCHEMA limits TO")
	mend(t, limits, c.Fix)
	expect(t, role, "tables", doctor.OK)
	if err := migrations.Up(ctx, pool); err != nil {
		t.Fatal(err)
	}
	expect(t, limits, "tables", doctor.Warn, "statements use schema limits, and schema public has tables too")
}

func TestDoctorMigrations(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := bed.NewPool(t)
	expect(t, pool, "migrations", doctor.OK, "all ")
	steps, err := migrations.Down(ctx, pool, migrations.Previous)
	if err != nil || len(steps) != 1 {
		t.Fatal(steps, err)
	}
	expect(t, pool, "migrations", doctor.Fail, steps[0].Name, "pglimit migrate up")
	expect(t, pool, "grants", doctor.Fail, "pglimit migrate up")
	if err := migrations.Up(ctx, pool); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "migrations", doctor.OK)
	bed.Exec(t, pool, "DROP TABLE "+migrations.VersionTable) // as if goose had run them
	expect(t, pool, "migrations", doctor.OK, "another tool")
	bed.Exec(t, pool, "DROP TABLE pglimit_sweep")
	expect(t, pool, "migrations", doctor.Fail, "no table pglimit_sweep", "with the tool")
}

func TestDoctorFunctions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := bed.NewPool(t)
	expect(t, pool, "functions", doctor.OK, "not installed")
	if err := migrations.UpFunctions(ctx, pool); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "functions", doctor.OK, "all ")
	if _, err := migrations.Functions.Down(ctx, pool, migrations.Previous); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "functions", doctor.Fail, "have not run", "pglimit migrate up --functions")
	if err := migrations.UpFunctions(ctx, pool); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "functions", doctor.OK)
}

func TestDoctorGrants(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	owner, role := bed.Connect(t, address), bed.Connect(t, bed.RuntimeRole(t, address))
	expect(t, owner, "grants", doctor.OK)
	c := expect(t, role, "grants", doctor.Fail, "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE public.pglimit_leaky_bucket, ")
	if _, err := bed.NewJanitor(t, role, nil).Sweep(t.Context()); err == nil {
		t.Error("a role without rights may sweep")
	}
	for _, name := range []string{"due", "policies"} {
		expect(t, role, name, doctor.Warn, "this role may not read it")
	}
	mend(t, owner, c.Fix)
	expect(t, role, "grants", doctor.OK)
	must.OK(bed.NewJanitor(t, role, nil).Sweep(t.Context()))(t)
	name := bed.Value[string](t, role, "SELECT current_user")
	bed.Exec(t, owner, "REVOKE UPDATE ON pglimit_gcra, pglimit_sweep FROM "+name)
	bed.Exec(t, owner, "REVOKE DELETE ON pglimit_token_bucket FROM "+name)
	c = expect(t, role, "grants", doctor.Fail, "GRANT UPDATE ON TABLE public.pglimit_gcra, public.pglimit_sweep TO "+name, "GRANT DELETE ON TABLE public.pglimit_token_bucket TO ")
	if len(c.Details) != 2 {
		t.Errorf("%q", c.Details)
	}
	mend(t, owner, c.Fix)
	for _, check := range []string{"grants", "due", "janitor", "policies", "future", "bloat"} {
		expect(t, role, check, doctor.OK)
	}
}

func TestDoctorSchemas(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	expect(t, pool, "schemas", doctor.OK, "public")
	name := bed.Value[string](t, bed.Connect(t, bed.RuntimeRole(t, address)), "SELECT current_user")
	bed.Exec(t, pool, "GRANT CREATE ON SCHEMA public TO PUBLIC, "+name)
	c := expect(t, pool, "schemas", doctor.Warn, "REVOKE CREATE ON SCHEMA public FROM PUBLIC, "+name)
	mend(t, pool, c.Fix)
	expect(t, pool, "schemas", doctor.OK)
	bed.Exec(t, pool, "CREATE SCHEMA theirs AUTHORIZATION "+name)
	other := bed.Connect(t, bed.WithSearchPath(t, address, "public,theirs"))
	c = expect(t, other, "schemas", doctor.Warn, "belongs to role "+name)
	mend(t, other, c.Fix)
	expect(t, other, "schemas", doctor.OK)
}

func TestDoctorUnlogged(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	expect(t, pool, "unlogged", doctor.OK)
	bed.Exec(t, pool, "ALTER TABLE pglimit_gcra SET UNLOGGED")
	bed.Exec(t, pool, "ALTER TABLE pglimit_lease SET UNLOGGED")
	c := expect(t, pool, "unlogged", doctor.Fail, "2 tables", "public.pglimit_gcra")
	mend(t, pool, c.Fix)
	expect(t, pool, "unlogged", doctor.OK)
}

// TestDoctorPolicies: the doctor finds the stored policies and overrides that programs refuse.
func TestDoctorPolicies(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	expect(t, pool, "policies", doctor.OK, "0 policies and 0 overrides")
	bed.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, time_zone) VALUES ('good', 'fixed_window', 5, 'day', 'Europe/Vienna'), ('bad', 'fixed_window', 5, 'day', 'Mars/Olympus')`)
	expect(t, pool, "policies", doctor.Fail, "1 of 2 stored policies", "policy bad: ", "Mars/Olympus", "public.pglimit_policy")
	bed.Exec(t, pool, `DELETE FROM pglimit_policy WHERE name = 'bad'`)
	expect(t, pool, "policies", doctor.OK, "1 policies")
	bed.Exec(t, pool, `DELETE FROM pglimit_policy_version`)
	mend(t, pool, expect(t, pool, "policies", doctor.Fail, "pglimit_policy_version has 0 rows").Fix)
	expect(t, pool, "policies", doctor.OK)
	// A restored dump may lack the constraints.
	bed.Exec(t, pool, `DO $$ DECLARE c record; BEGIN FOR c IN SELECT conname, conrelid::regclass AS t FROM pg_constraint WHERE conrelid IN ('pglimit_policy'::regclass, 'pglimit_override'::regclass) AND contype = 'c' LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname); END LOOP; END $$`)
	for _, bad := range []string{
		`('p', 'gcra', 'NaN', 60, 'durable', 'fail_closed', NULL)`, `('p', 'gcra', 5, 1e300, 'durable', 'fail_closed', NULL)`, `('p', 'gcra', 5, -1, 'durable', 'fail_closed', NULL)`,
		`('p', 'x', 5, 60, 'durable', 'fail_closed', NULL)`, `('P', 'gcra', 5, 60, 'durable', 'fail_closed', NULL)`, `('p', 'gcra', 5, 60, 'x', 'fail_closed', NULL)`,
		`('p', 'gcra', 5, 60, 'durable', 'x', NULL)`, `('p', 'fixed_window', 5, 60, 'durable', 'fail_closed', 6)`, `('p', 'gcra', 5, NULL, 'durable', 'fail_closed', NULL)`,
	} {
		bed.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, durability, on_error, burst) VALUES `+bad)
		expect(t, pool, "policies", doctor.Fail, "1 of 2")
		bed.Exec(t, pool, `DELETE FROM pglimit_policy WHERE name <> 'good'`)
	}
	for _, bad := range []string{`note = repeat('n', 1001)`, `max_ttl_s = 0.5`, `max_ttl_s = 'Infinity'`, `limit_units = 'NaN'`, `time_zone = 'Mars/Olympus'`} {
		expect(t, pool, "policies", doctor.OK)
		bed.Exec(t, pool, `UPDATE pglimit_policy SET `+bad)
		expect(t, pool, "policies", doctor.Fail, "1 of 1 stored policies", "policy good: ")
		bed.Exec(t, pool, `UPDATE pglimit_policy SET note = '', max_ttl_s = 86400, limit_units = 5, time_zone = 'Europe/Vienna'`)
	}
	for _, bad := range []string{
		`('p', 'secret', 'NaN', NULL, false, NULL, '')`, `('p', 'secret', 1e300, NULL, false, NULL, '')`, `('p', 'secret', 1, 'Infinity', false, NULL, '')`,
		`('p', 'secret', 1, NULL, true, NULL, '')`, `('p', 'secret', NULL, NULL, false, NULL, '')`, `('p', 'secret', 1, NULL, false, '1969-01-01', '')`,
		`('p', 'secret', 1, NULL, false, NULL, repeat('secret', 200))`, `('p', repeat('secret', 200), 1, NULL, false, NULL, '')`, `('P', 'secret', 1, NULL, false, NULL, '')`,
	} {
		bed.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, limit_units, burst, unlimited, until, note) VALUES `+bad)
		c := expect(t, pool, "policies", doctor.Fail, "1 of 1 stored overrides", "an override of policy ", "public.pglimit_override")
		if text := fmt.Sprint(c); strings.Contains(text, "secret") {
			t.Errorf("it shows a key or a note: %s", text)
		}
		bed.Exec(t, pool, `DELETE FROM pglimit_override`)
	}
	// What programs cannot read at all.
	bed.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited, until) VALUES ('p', 'k', true, 'infinity')`)
	expect(t, pool, "policies", doctor.Fail, "out of range")
	bed.Exec(t, pool, `DELETE FROM pglimit_override`)
	expect(t, pool, "policies", doctor.OK)
}
