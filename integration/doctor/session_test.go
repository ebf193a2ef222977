package doctor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
)

// databaseSetting sets a setting for all later sessions of pool's database.
func databaseSetting(t *testing.T, pool *pgxpool.Pool, name, value string) {
	t.Helper()
	bed.Exec(t, pool, fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", bed.Value[string](t, pool, "SELECT quote_ident(current_database())"), name, value))
}

func TestDoctorIsolation(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	expect(t, pool, "isolation", doctor.OK)
	databaseSetting(t, pool, "default_transaction_isolation", "serializable")
	c := expect(t, pool, "isolation", doctor.Warn, "serializable", "ErrRetryTx")
	mend(t, pool, c.Fix)
	expect(t, pool, "isolation", doctor.OK)
	own := bed.Connect(t, address, bed.Setting("default_transaction_isolation", "repeatable read"))
	expect(t, own, "isolation", doctor.Warn, "repeatable read", "remove default_transaction_isolation from the connection string")
}

func TestDoctorTimeouts(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	expect(t, pool, "timeouts", doctor.OK)
	for _, name := range []string{"lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout"} {
		databaseSetting(t, pool, name, "900ms")
		expect(t, pool, "timeouts", doctor.Warn, name+" is 900 ms")
	}
	c := expect(t, pool, "timeouts", doctor.Warn, "3 timeouts")
	mend(t, pool, c.Fix)
	expect(t, pool, "timeouts", doctor.OK)
	databaseSetting(t, pool, "lock_timeout", "0")
	expect(t, pool, "timeouts", doctor.OK)
}

func TestDoctorReadOnly(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	expect(t, pool, "primary", doctor.OK)
	databaseSetting(t, pool, "default_transaction_read_only", "on")
	c := expect(t, pool, "primary", doctor.Fail, "default_transaction_read_only is on", "every decision is refused")
	mend(t, pool, c.Fix)
	expect(t, pool, "primary", doctor.OK)
}

func TestDoctorConnections(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	owner, roleAddress := bed.Connect(t, address), bed.RuntimeRole(t, address)
	role := bed.Connect(t, roleAddress, bed.FourConnections)
	expect(t, role, "connections", doctor.OK, "connections are in use")
	name := bed.Value[string](t, role, "SELECT current_user")
	alone := func() { // the server counts a closed connection until its process has ended
		t.Helper()
		bed.Eventually(t, "the doctor's connections have ended", func(context.Context) (bool, error) {
			return bed.Value[int](t, owner, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", name) == 1, nil
		})
	}
	alone()
	bed.Exec(t, owner, "ALTER ROLE "+name+" CONNECTION LIMIT 3")
	// One of the pool, one of the doctor: a second one of the pool has room, and no third.
	expect(t, role, "connections", doctor.Warn, "2 of 3 connections", "CONNECTION LIMIT", "this pool opens up to 4")
	alone()
	bed.Exec(t, owner, "ALTER ROLE "+name+" CONNECTION LIMIT 2")
	expect(t, role, "connections", doctor.Fail, "2 of 2 connections")
	alone()
	bed.Exec(t, owner, "ALTER ROLE "+name+" CONNECTION LIMIT -1")
	expect(t, role, "connections", doctor.OK)
	alone()
	bed.Exec(t, owner, "ALTER DATABASE "+bed.Value[string](t, owner, "SELECT current_database()")+" CONNECTION LIMIT 4")
	if c := find(t, role, "connections"); c.Status == doctor.OK || !strings.Contains(c.Message, "the database's CONNECTION LIMIT") {
		t.Errorf("%+v", c)
	}
}

func TestDoctorClock(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	expect(t, pool, "clock", doctor.OK, "give or take")
	off := func(d time.Duration) doctor.Config {
		return doctor.Config{Now: func() time.Time { return time.Now().Add(d) }}
	}
	expectIn(t, find(t, pool, "clock", off(time.Minute)), doctor.Warn, "behind this program's", "NTP")
	expectIn(t, find(t, pool, "clock", off(-time.Minute)), doctor.Warn, "ahead of this program's")
	expectIn(t, find(t, pool, "clock", off(-time.Hour)), doctor.Fail)
}

func TestDoctorFuture(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	for i, large := range []bool{false, true} {
		for _, table := range bed.LimitTables(t, pool) {
			bed.InsertRows(t, pool, table, fmt.Sprint("p", i), 3, 0)
		}
		if large { // as if there were so many that only a sample is read
			bed.Exec(t, pool, `UPDATE pg_class SET reltuples = 1e9 WHERE relname = 'pglimit_gcra'`)
		}
		expect(t, pool, "future", doctor.OK)
		bed.Exec(t, pool, `UPDATE pglimit_gcra SET updated_at_us = 253402300799000000, expires_at_us = 253402300799000000 WHERE policy = $1 AND key = 'k2'`, fmt.Sprint("p", i))
		bed.Exec(t, pool, `UPDATE pglimit_fixed_window SET updated_at_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 60000000 WHERE policy = $1 AND key <> 'k1'`, fmt.Sprint("p", i))
		c := expect(t, pool, "future", doctor.Fail, "3 keys", "public.pglimit_gcra: 1 keys of policy p"+fmt.Sprint(i), "public.pglimit_fixed_window: 2 keys")
		if strings.Contains(c.Message, "sampled") != large {
			t.Errorf("%+v", c)
		}
		if strings.Contains(c.Message+c.Fix+strings.Join(c.Details, ""), "k2") {
			t.Errorf("a key is shown: %+v", c)
		}
		mend(t, pool, c.Fix)
		expect(t, pool, "future", doctor.OK)
	}
	if n := bed.Value[int](t, pool, `SELECT (SELECT count(*) FROM pglimit_gcra) + (SELECT count(*) FROM pglimit_fixed_window)`); n != 12-2-4 {
		t.Errorf("%d rows are left", n)
	}
}

func TestDoctorJanitor(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := bed.NewPool(t)
	expect(t, pool, "due", doctor.OK, "0 due rows and 0 of 0 open reservations")
	expect(t, pool, "janitor", doctor.OK, "no sweep was ever completed, and nothing waits for one")
	due := func(ago string) {
		t.Helper()
		bed.Exec(t, pool, `DELETE FROM pglimit_gcra`)
		bed.InsertRows(t, pool, "pglimit_gcra", "p", 3, bed.Value[int64](t, pool, `SELECT (extract(epoch FROM clock_timestamp() - $1::text::interval) * 1000000)::bigint`, ago))
	}
	due("1 minute")
	expect(t, pool, "due", doctor.OK, "3 due rows")
	expect(t, pool, "janitor", doctor.Warn, "no sweep was ever completed", "pglimit janitor")
	due("10 minutes")
	expect(t, pool, "due", doctor.Warn, "the oldest for 10m", "pglimit janitor --once")
	due("2 hours")
	expect(t, pool, "due", doctor.Fail, "the oldest for 2h")
	expect(t, pool, "janitor", doctor.Fail)
	expectIn(t, find(t, pool, "due", doctor.Config{JanitorInterval: time.Hour}), doctor.OK)

	must.OK(bed.NewJanitor(t, pool, nil).Sweep(ctx))(t)
	expect(t, pool, "due", doctor.OK)
	expect(t, pool, "janitor", doctor.OK, "deleted 3 rows", "no janitor has the lease")
	bed.Exec(t, pool, `UPDATE pglimit_sweep SET swept_at_us = swept_at_us - 600000000`)
	expect(t, pool, "janitor", doctor.Warn, "ended 10m")
	bed.Exec(t, pool, `UPDATE pglimit_sweep SET swept_at_us = swept_at_us - 7200000000`)
	expect(t, pool, "janitor", doctor.Warn, "ended 2h10m") // nothing waits
	due("1 minute")
	expect(t, pool, "janitor", doctor.Fail)
	bed.Exec(t, pool, `INSERT INTO pglimit_lease (name, holder, expires_at_us) VALUES ('janitor', 'stuck', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 60000000)`)
	expect(t, pool, "janitor", doctor.Fail, "janitor stuck has the lease", "read that process's log")
}
