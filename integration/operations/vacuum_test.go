package operations

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

func TestDoctorHOT(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 200, 0)
	testworld.Exec(t, pool, "CREATE INDEX pglimit_token_bucket_level ON pglimit_token_bucket (level)")
	testworld.Exec(t, pool, "CREATE INDEX pglimit_token_bucket_keys ON pglimit_token_bucket (key)") // which no update changes
	testworld.Exec(t, pool, `ALTER TABLE pglimit_token_bucket ADD CONSTRAINT "Once" UNIQUE (policy, key, level)`)
	expect(t, pool, "hot", doctor.OK)
	for range 51 {
		testworld.Exec(t, pool, "UPDATE pglimit_token_bucket SET level = level + 1")
	}
	const drops = "ALTER TABLE public.pglimit_token_bucket DROP CONSTRAINT \"Once\"; DROP INDEX public.pglimit_token_bucket_level"
	if c := await(t, pool, "hot", doctor.Warn, "public.pglimit_token_bucket: 0.0 % of 10200 updates are HOT"); c.Fix != drops {
		t.Error(c.Fix)
	}
	testworld.Exec(t, pool, "ALTER TABLE pglimit_token_bucket RESET (fillfactor)")
	c := expect(t, pool, "hot", doctor.Warn)
	if c.Fix != drops+"; ALTER TABLE public.pglimit_token_bucket SET (fillfactor = 70)" {
		t.Error(c.Fix)
	}
	mend(t, pool, c.Fix)
	expect(t, pool, "hot", doctor.OK, "no index or setting") // the counters stay
}

func TestDoctorBloat(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	testworld.Exec(t, pool, "ALTER TABLE pglimit_token_bucket SET (autovacuum_enabled = false)")
	c := expect(t, pool, "autovacuum", doctor.Fail, "autovacuum is off for public.pglimit_token_bucket")
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 20_000, 0)
	expect(t, pool, "bloat", doctor.OK)
	testworld.Exec(t, pool, "DELETE FROM pglimit_token_bucket WHERE expires_at_us > 4000")
	bloat := await(t, pool, "bloat", doctor.Warn, "public.pglimit_token_bucket: 80 % of 20000 rows are dead")
	mend(t, pool, c.Fix)
	if c := find(t, pool, "autovacuum"); c.Verdict == doctor.Warn { // unless it has been vacuumed meanwhile
		expectIn(t, c, doctor.Warn, "16000 dead rows and was vacuumed never", "VACUUM public.pglimit_token_bucket")
	}
	mend(t, pool, bloat.Fix)
	await(t, pool, "bloat", doctor.OK)
	await(t, pool, "autovacuum", doctor.OK)
}

// TestDoctorSnapshots: a forgotten transaction is found, also by a role that may only see
// that there are sessions, and ended by the fix.
func TestDoctorSnapshots(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	expect(t, pool, "snapshots", doctor.OK, "no transaction is older than 1m")
	forgotten := testworld.Connect(t, address, testworld.Setting("application_name", "report"))
	tx := testworld.Begin(t, forgotten, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	var pid string
	must.Succeed(t, tx.QueryRow(ctx, "SELECT pg_backend_pid()::text FROM pglimit_token_bucket UNION ALL SELECT pg_backend_pid()::text").Scan(&pid))
	testworld.Eventually(t, "the session is idle", func(context.Context) (bool, error) {
		return testworld.Value[bool](t, pool, "SELECT state <> 'active' AND clock_timestamp() > xact_start + interval '60 ms' FROM pg_stat_activity WHERE pid = $1::text::int", pid), nil
	})
	expect(t, pool, "snapshots", doctor.OK)
	hour, tiny := doctor.Config{OldTransaction: time.Hour}, doctor.Config{OldTransaction: time.Millisecond}
	expectIn(t, find(t, pool, "snapshots", hour), doctor.OK)
	c := expectIn(t, find(t, pool, "snapshots", tiny), doctor.Fail, "pid "+pid, `application "report"`, "idle in transaction", "SELECT pg_terminate_backend("+pid+")")

	roleAddress := testworld.RuntimeRole(t, address)
	role, name := testworld.Connect(t, roleAddress), testworld.RoleOf(t, roleAddress)
	hidden := expectIn(t, find(t, role, "snapshots", tiny), doctor.Unchecked, "those of others are not visible", "GRANT pg_read_all_stats TO "+name)
	mend(t, pool, hidden.Fix)
	expectIn(t, find(t, role, "snapshots", tiny), doctor.Fail, "pid "+pid)

	mend(t, pool, c.Fix)
	testworld.Eventually(t, "the session has ended", func(context.Context) (bool, error) {
		return find(t, pool, "snapshots", tiny).Verdict == doctor.OK, nil
	})
}
