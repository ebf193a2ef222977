package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/migrations"
)

// await waits until a check has a status and says words: the server publishes its
// statistics a little later. Before PostgreSQL 15 a session that is idle keeps what it
// counted, until it ends.
func await(t *testing.T, pool *pgxpool.Pool, name string, status doctor.Status, words ...string) doctor.Check {
	t.Helper()
	pool.Reset()
	var c doctor.Check
	bed.Eventually(t, fmt.Sprintf("%s is %v and says %q", name, status, words), func(context.Context) (bool, error) {
		c = find(t, pool, name)
		lacks := func(word string) bool {
			return !strings.Contains(c.Message+"\n"+c.Fix+"\n"+strings.Join(c.Details, "\n"), word)
		}
		return c.Status == status && !slices.ContainsFunc(words, lacks), nil
	})
	return c
}

func TestDoctorHOT(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	bed.InsertRows(t, pool, "pglimit_gcra", "p", 200, 0)
	bed.Exec(t, pool, "CREATE INDEX extra ON pglimit_gcra (level)")
	expect(t, pool, "hot", doctor.OK)
	for range 51 {
		bed.Exec(t, pool, "UPDATE pglimit_gcra SET level = level + 1")
	}
	await(t, pool, "hot", doctor.Warn, "public.pglimit_gcra: 0.0 % of 10200 updates are HOT", "drop indexes of public.pglimit_gcra")
	bed.Exec(t, pool, "ALTER TABLE pglimit_gcra RESET (fillfactor)")
	c := expect(t, pool, "hot", doctor.Warn, "ALTER TABLE public.pglimit_gcra SET (fillfactor = 70)")
	alter, reset, _ := strings.Cut(c.Fix, ", and run ")
	mend(t, pool, alter)
	mend(t, pool, strings.TrimSuffix(reset, " to count from now on"))
	await(t, pool, "hot", doctor.OK)
}

func TestDoctorBloat(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	bed.Exec(t, pool, "ALTER TABLE pglimit_gcra SET (autovacuum_enabled = false)")
	c := expect(t, pool, "autovacuum", doctor.Fail, "autovacuum is off for public.pglimit_gcra")
	bed.InsertRows(t, pool, "pglimit_gcra", "p", 20_000, 0)
	expect(t, pool, "bloat", doctor.OK)
	bed.Exec(t, pool, "DELETE FROM pglimit_gcra WHERE expires_at_us > 4000")
	bloat := await(t, pool, "bloat", doctor.Warn, "public.pglimit_gcra: 80 % of 20000 rows are dead")
	mend(t, pool, c.Fix)
	if c := find(t, pool, "autovacuum"); c.Status == doctor.Warn { // unless it has been vacuumed meanwhile
		expectIn(t, c, doctor.Warn, "16000 dead rows and was vacuumed never", "VACUUM public.pglimit_gcra")
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
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	expect(t, pool, "snapshots", doctor.OK, "no transaction is older than 1m0s")
	forgotten := bed.Connect(t, address, bed.Setting("application_name", "report"))
	tx := bed.Begin(t, forgotten, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	var pid string
	if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()::text FROM pglimit_gcra UNION ALL SELECT pg_backend_pid()::text").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	bed.Eventually(t, "the session is idle", func(context.Context) (bool, error) {
		return bed.Value[bool](t, pool, "SELECT state <> 'active' AND clock_timestamp() > xact_start + interval '60 ms' FROM pg_stat_activity WHERE pid = $1::text::int", pid), nil
	})
	expect(t, pool, "snapshots", doctor.OK)
	hour, tiny := doctor.Config{OldTransaction: time.Hour}, doctor.Config{OldTransaction: time.Millisecond}
	expectIn(t, find(t, pool, "snapshots", hour), doctor.OK)
	c := expectIn(t, find(t, pool, "snapshots", tiny), doctor.Fail, "pid "+pid, `application "report"`, "idle in transaction", "SELECT pg_terminate_backend("+pid+")")

	role := bed.Connect(t, bed.RuntimeRole(t, address))
	name := bed.Value[string](t, role, "SELECT current_user")
	hidden := expectIn(t, find(t, role, "snapshots", tiny), doctor.OK, "not visible to this role: GRANT pg_read_all_stats TO "+name)
	bed.Exec(t, pool, "GRANT pg_read_all_stats TO "+name)
	expectIn(t, find(t, role, "snapshots", tiny), doctor.Fail, "pid "+pid)
	if !strings.Contains(hidden.Message, " sessions of other roles") {
		t.Errorf("%+v", hidden)
	}

	mend(t, pool, c.Fix)
	bed.Eventually(t, "the session has ended", func(context.Context) (bool, error) {
		return find(t, pool, "snapshots", tiny).Status == doctor.OK, nil
	})
}

// TestDoctorPrepared: a prepared transaction that no one ends, and one of another database.
func TestDoctorPrepared(t *testing.T) {
	t.Parallel()
	pool := ownServer(t, "max_prepared_transactions", "5")
	if err := migrations.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	tiny := doctor.Config{OldTransaction: time.Millisecond}
	expectIn(t, find(t, pool, "snapshots", tiny), doctor.OK)
	bed.Exec(t, pool, "BEGIN; INSERT INTO pglimit_sweep VALUES (1, 1, 1, 1, 1, 'x', 'y'); PREPARE TRANSACTION 'order''s 1'", pgx.QueryExecModeSimpleProtocol)
	var c doctor.Check
	bed.Eventually(t, "it is old", func(context.Context) (bool, error) {
		c = find(t, pool, "snapshots", tiny)
		return c.Status != doctor.OK, nil
	})
	expectIn(t, c, c.Status, `prepared transaction "order's 1"`, "ROLLBACK PREPARED 'order''s 1'")
	mend(t, pool, c.Fix)
	expectIn(t, find(t, pool, "snapshots", tiny), doctor.OK)
}

// TestDoctorServerSettings: settings of the server that lose or keep too much, and replicas
// that commits wait for.
func TestDoctorServerSettings(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := ownServer(t, "fsync", "on", "full_page_writes", "on")
	if err := migrations.Up(ctx, pool); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"durability", "autovacuum", "replicas"} {
		expect(t, pool, name, doctor.OK)
	}
	if c := find(t, pool, "server"); !outdated(c) {
		expectIn(t, c, doctor.OK)
	}
	set := func(name, value string) {
		t.Helper()
		mend(t, pool, "ALTER SYSTEM SET "+name+" = '"+value+"'; SELECT pg_reload_conf()")
	}
	for _, c := range []struct {
		name, value, check string
		status             doctor.Status
	}{
		{"synchronous_commit", "off", "durability", doctor.Warn},
		{"autovacuum", "off", "autovacuum", doctor.Fail},
		{"track_counts", "off", "autovacuum", doctor.Fail},
	} {
		set(c.name, c.value)
		ill := await(t, pool, c.check, c.status)
		expectIn(t, ill, c.status, c.name)
		mend(t, pool, ill.Fix)
		await(t, pool, c.check, doctor.OK)
	}
	// The shared server has these on its command line.
	expect(t, bed.NewPool(t), "durability", doctor.Fail, "fsync is off", "start the server with fsync = on: its command line sets it")
	set("synchronous_standby_names", "elsewhere")
	ill := await(t, pool, "replicas", doctor.Fail)
	expectIn(t, ill, doctor.Fail, `"elsewhere"`, "commits wait for it")
	_, fix, _ := strings.Cut(ill.Fix, ", or ")
	mend(t, pool, fix)
	await(t, pool, "replicas", doctor.OK)
}
