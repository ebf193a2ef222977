package operations

import (
	"testing"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

func TestDoctorTables(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := testworld.EmptyDatabase(t)
	pool := testworld.Connect(t, address)
	expect(t, pool, "tables", doctor.Fail, "no schema of the search_path (public)", "pglimit migrate up")
	for _, name := range []string{"migrations", "janitor", "hot", "unlogged"} { // alone, they report the cause
		expect(t, pool, name, doctor.Fail, "no schema of the search_path (public)", "pglimit migrate up")
	}
	testworld.Exec(t, pool, "CREATE SCHEMA limits")
	limits := testworld.Connect(t, testworld.WithSearchPath(t, address, "limits"))
	must.Succeed(t, sets.Tables.Up(ctx, limits))
	expect(t, limits, "tables", doctor.OK, "in schema limits")
	expect(t, pool, "tables", doctor.Fail, "in schema limits, which is not in the search_path", "SET search_path = \"$user\", public, limits")
	role := testworld.Connect(t, testworld.WithSearchPath(t, testworld.RuntimeRole(t, address), "limits"))
	c := expect(t, role, "tables", doctor.Fail, "not open to role", "the owner of the tables")
	mend(t, limits, c.Fix)
	expect(t, role, "tables", doctor.OK)
	must.Succeed(t, sets.Tables.Up(ctx, pool))
	expect(t, limits, "tables", doctor.Warn, "statements use schema limits, and schema public has tables too")
}

func TestDoctorMigrations(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	expect(t, pool, "migrations", doctor.OK, "all ")
	steps, err := sets.Tables.Down(ctx, pool, 7)
	if err != nil || len(steps) != 9 {
		t.Fatal(steps, err)
	}
	expect(t, pool, "migrations", doctor.Fail, steps[8].Name, "pglimit migrate up")
	expect(t, pool, "grants", doctor.Fail, steps[8].Name, "pglimit migrate up")
	must.Succeed(t, sets.Tables.Up(ctx, pool))
	expect(t, pool, "migrations", doctor.OK)
	testworld.Exec(t, pool, "DROP TABLE "+sets.Tables.VersionTable()) // as if goose had run them
	expect(t, pool, "migrations", doctor.OK, "another tool")
	testworld.Exec(t, pool, "DROP TABLE pglimit_sweep")
	expect(t, pool, "migrations", doctor.Fail, "pglimit_sweep missing", "with the tool")
}

func TestDoctorFunctions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	expect(t, pool, "functions", doctor.OK, "not installed")
	must.Succeed(t, sets.Functions.Up(ctx, pool))
	expect(t, pool, "functions", doctor.OK, "all ")
	must.OK(sets.Functions.Down(ctx, pool, migrate.Previous))(t)
	expect(t, pool, "functions", doctor.Fail, "have not run", "pglimit migrate up --functions")
	must.Succeed(t, sets.Functions.Up(ctx, pool))
	expect(t, pool, "functions", doctor.OK)
}

func TestDoctorGrants(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	roleAddress := testworld.RuntimeRole(t, address)
	owner, role := testworld.Connect(t, address), testworld.Connect(t, roleAddress)
	expect(t, owner, "grants", doctor.OK)
	c := expect(t, role, "grants", doctor.Fail, "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE public.pglimit_leaky_bucket, ")
	if _, err := testworld.NewJanitor(t, role, nil).Sweep(t.Context()); err == nil {
		t.Error("a role without rights may sweep")
	}
	report := must.OK(doctor.Run(t.Context(), role, &doctor.Config{Only: []string{"policies", "janitor"}}))(t)
	expectIn(t, report.Checks[0], doctor.Fail, "lacks rights", c.Fix) // alone, the first one reports the cause
	expectIn(t, report.Checks[1], doctor.Unchecked, "see check janitor")
	mend(t, owner, c.Fix)
	expect(t, role, "grants", doctor.OK)
	must.OK(testworld.NewJanitor(t, role, nil).Sweep(t.Context()))(t)
	name := testworld.RoleOf(t, roleAddress)
	testworld.Exec(t, owner, "REVOKE UPDATE ON pglimit_fixed_window, pglimit_sweep FROM "+name)
	testworld.Exec(t, owner, "REVOKE DELETE ON pglimit_token_bucket FROM "+name)
	c = expect(t, role, "grants", doctor.Fail, "GRANT UPDATE ON TABLE public.pglimit_fixed_window, public.pglimit_sweep TO "+name, "GRANT DELETE ON TABLE public.pglimit_token_bucket TO ")
	if len(c.Details) != 2 {
		t.Errorf("%q", c.Details)
	}
	mend(t, owner, c.Fix)
	for _, check := range []string{"grants", "janitor", "policies", "future", "bloat"} {
		expect(t, role, check, doctor.OK)
	}
}
