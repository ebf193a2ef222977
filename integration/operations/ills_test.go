package operations

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
)

// databaseHas is SQL that sets a setting for all later sessions of the database.
func databaseHas(name, value string) string {
	return fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET %s = %%L', current_database(), '%s'); END $$", name, value)
}

// TestDoctorIlls: SQL makes a healthy database ill, a check finds it, and its fix mends it.
func TestDoctorIlls(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	role := bed.RoleOf(t, bed.RuntimeRole(t, address))
	for _, c := range []struct {
		check, sql string
		status     doctor.Verdict
		words      []string
	}{
		{"isolation", databaseHas("default_transaction_isolation", "serializable"), doctor.Warn, []string{"serializable", "ErrRetryTx"}},
		{"timeouts", databaseHas("lock_timeout", "900ms"), doctor.Warn, []string{"1 timeouts", "lock_timeout is 900 ms"}},
		{"timeouts", databaseHas("statement_timeout", "900ms") + ";" + databaseHas("idle_in_transaction_session_timeout", "999ms"), doctor.Warn,
			[]string{"2 timeouts", "statement_timeout is 900 ms", "idle_in_transaction_session_timeout is 999 ms"}},
		{"primary", databaseHas("default_transaction_read_only", "on"), doctor.Fail, []string{"default_transaction_read_only is on", "every decision is refused"}},
		{"schemas", "GRANT CREATE ON SCHEMA public TO PUBLIC, " + role, doctor.Warn, []string{"REVOKE CREATE ON SCHEMA public FROM PUBLIC, " + role}},
		{"schemas", "ALTER SCHEMA public OWNER TO " + role, doctor.Warn, []string{"belongs to role " + role}},
		{"unlogged", "ALTER TABLE pglimit_gcra SET UNLOGGED; ALTER TABLE pglimit_lease SET UNLOGGED", doctor.Fail, []string{"2 tables", "public.pglimit_gcra"}},
		{"autovacuum", "ALTER TABLE pglimit_gcra SET (autovacuum_enabled = false)", doctor.Fail, []string{"autovacuum is off for public.pglimit_gcra"}},
		{"policies", "DELETE FROM pglimit_policy_version", doctor.Fail, []string{"pglimit_policy_version has 0 rows"}},
	} {
		expect(t, pool, c.check, doctor.OK)
		bed.Exec(t, pool, c.sql, pgx.QueryExecModeSimpleProtocol)
		mend(t, pool, expect(t, pool, c.check, c.status, c.words...).Fix)
		expect(t, pool, c.check, doctor.OK)
	}
	bed.Exec(t, pool, databaseHas("lock_timeout", "0")) // none
	expect(t, pool, "timeouts", doctor.OK)
	own := bed.Connect(t, address, bed.Setting("default_transaction_isolation", "repeatable read"))
	expect(t, own, "isolation", doctor.Warn, "repeatable read", "remove default_transaction_isolation from the connection string")
}

func TestDoctorConnections(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	roleAddress := bed.RuntimeRole(t, address)
	owner, role, name := bed.Connect(t, address), bed.Connect(t, roleAddress, bed.FourConnections), bed.RoleOf(t, roleAddress)
	bed.Exec(t, role, "SELECT") // opens one connection
	expect(t, role, "connections", doctor.OK, "connections are in use")
	limit := func(sql string) {
		t.Helper()
		bed.Eventually(t, "the doctor's connections have ended", func(context.Context) (bool, error) { // the server counts them until their processes have
			return bed.Value[int](t, owner, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", name) == 1, nil
		})
		bed.Exec(t, owner, sql, pgx.QueryExecModeSimpleProtocol)
	}
	limit("ALTER ROLE " + name + " CONNECTION LIMIT 2") // one of the pool, one of the doctor
	expect(t, role, "connections", doctor.Fail, "2 of 2 connections", "the role's CONNECTION LIMIT", "this pool opens up to 4")
	limit("ALTER ROLE " + name + " CONNECTION LIMIT -1; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 4', current_database()); END $$")
	if c := find(t, role, "connections"); c.Verdict == doctor.OK || !says(c, "the database's CONNECTION LIMIT") {
		t.Errorf("%+v", c)
	}
}

func TestDoctorClock(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	expect(t, pool, "clock", doctor.OK, "give or take")
	late := doctor.Config{Now: func() time.Time { return time.Now().Add(time.Minute) }}
	expectIn(t, find(t, pool, "clock", late), doctor.Warn, "behind this program's", "NTP")
}
