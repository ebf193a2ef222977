package migrate

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// gone is SQL that takes a part of what migrations make away.
func gone(p migrate.Part) string {
	table := p.Name[strings.LastIndex(p.Name, " ")+1:]
	if p.Kind == "OPTION" {
		return "ALTER TABLE " + table + " RESET (fillfactor)"
	}
	if name, ok := strings.CutPrefix(p.Text, "CONSTRAINT "); ok {
		name, _, _ = strings.Cut(strings.Replace(name, " PRIMARY", " CHECK", 1), " CHECK")
		return "ALTER TABLE " + table + " DROP CONSTRAINT " + name
	}
	return "DROP " + p.Kind + " " + p.Name + " CASCADE"
}

// TestMigrateUpMends: whatever is missing of what the migrations made, or changed, Up makes
// it again, and reports it. It does so whether the migrations are on record or only stand.
func TestMigrateUpMends(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	whole := standing(t, pool)
	ills := map[string]bool{
		"ALTER TABLE pglimit_policy DISABLE TRIGGER pglimit_policy_stamp": true,
		"ALTER FUNCTION pglimit_policy_stamp() RESET ALL":                 true,
		"CREATE OR REPLACE VIEW pglimit_token_bucket_now AS SELECT policy, key, 0::float8 AS level, now() AS updated_at, now() AS blocked_until, now() AS empty_at FROM pglimit_token_bucket": true,
		"DROP INDEX pglimit_token_bucket_expires; CREATE INDEX pglimit_token_bucket_expires ON pglimit_token_bucket (key)":                                                                    true,
		`ALTER TABLE pglimit_override DROP CONSTRAINT "factor must be from 1e-9 to 2^53", ADD CONSTRAINT "factor must be from 1e-9 to 2^53" CHECK (factor > 1)`:                               true,
		"DROP TABLE pglimit_policy_version; ALTER TABLE pglimit_denial DROP COLUMN merged; DELETE FROM pglimit_goose_db_version WHERE version_id IN (0, 3, 4, 8)":                             true,
	}
	for _, p := range whole {
		ills[gone(p)] = true
	}
	for ill := range ills {
		testworld.Exec(t, pool, ill)
		if difference(0, whole, standing(t, pool)) == "" {
			t.Fatalf("%s: it is not seen", ill)
		}
		steps, err := sets.Tables.UpTo(t.Context(), pool, migrate.Latest)
		if err != nil || len(steps) == 0 || len(steps[0].Again) == 0 {
			t.Fatalf("%s: %+v, %v", ill, steps, err)
		}
		if left := difference(0, whole, standing(t, pool)); left != "" {
			t.Fatalf("%s: after Up:\n%s", ill, left)
		}
	}
	if got := testworld.Value[string](t, pool, `SELECT string_agg(version_id::text, ' ' ORDER BY id) FROM pglimit_goose_db_version`); got != "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16" {
		t.Errorf("on record are %s", got)
	}
	called, failed := testworld.CallStatements(t.Context(), pool, "")
	if len(failed) > 0 {
		t.Errorf("of %q failed %v", called, failed)
	}
}

// TestMigrateUpgrades: Up makes the tables and functions of each release, and of each
// version of the tables, into this release's. Rows stay.
func TestMigrateUpgrades(t *testing.T) {
	t.Parallel()
	whole := standing(t, testworld.FunctionsPool(t))
	starts := map[string][2]int64{"unreleased": {migrate.Latest, migrate.Latest}}
	for v := range len(testworld.Migrations(0)) {
		starts[fmt.Sprintf("tables up to %d", v+1)] = [2]int64{int64(v + 1), 0}
	}
	for line := range strings.Lines(string(must.OK(os.ReadFile("../testdata/repository/internal/migrate/testdata/released.txt"))(t))) {
		var release string
		var tables, functions int64
		if n, _ := fmt.Sscanf(line, "# %s %d %d", &release, &tables, &functions); n == 3 {
			starts[release] = [2]int64{tables, functions}
		}
	}
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testworld.Connect(t, testworld.EmptyDatabase(t))
			must.OK(sets.Tables.UpTo(t.Context(), pool, start[0]))(t)
			if start[1] > 0 {
				must.OK(sets.Functions.UpTo(t.Context(), pool, start[1]))(t)
			}
			testworld.CallStatements(t.Context(), pool, "") // those that this version has
			rows := map[string]int{}
			for _, p := range standing(t, pool) {
				if p.Kind == "TABLE" {
					rows[p.Name] = testworld.Value[int](t, pool, "SELECT count(*) FROM "+p.Name)
				}
			}
			must.Succeed(t, sets.Tables.Up(t.Context(), pool))
			must.Succeed(t, sets.Functions.Up(t.Context(), pool))
			if left := difference(0, whole, standing(t, pool)); left != "" {
				t.Errorf("after Up:\n%s", left)
			}
			for table, before := range rows {
				if n := testworld.Value[int](t, pool, "SELECT count(*) FROM "+table); n != before {
					t.Errorf("%s: %d of %d rows are left", table, n, before)
				}
			}
			if called, failed := testworld.CallStatements(t.Context(), pool, "Take"); rows["pglimit_token_bucket"] == 0 || len(failed) > 0 {
				t.Errorf("%q of %q failed, with %v", failed, called, rows)
			}
		})
	}
}

// upWhileLocked runs Up, which has to wait for a transaction that has locked the rows of a table.
func upWhileLocked(t *testing.T, pool *pgxpool.Pool, table string) {
	t.Helper()
	ctx, tx := t.Context(), testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(ctx, `SELECT FROM `+table+` FOR UPDATE`))(t)
	done := make(chan error, 1)
	go func() { done <- sets.Tables.Up(ctx, pool) }()
	testworld.AwaitBlocked(t, pool)
	must.Succeed(t, errors.Join(tx.Commit(ctx), <-done))
}

// TestMigrateUpKeepsLongLogs: a log of a version whose logs had no parts, of which a transaction
// has locked the row when Up begins, goes on where it was.
func TestMigrateUpKeepsLongLogs(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.NewPool(t)
	testworld.Exec(t, pool, `DROP VIEW pglimit_sliding_window_log_now CASCADE; DROP FUNCTION pglimit_log_move; DROP TYPE pglimit_log; DROP FUNCTION pglimit_log_whole;
		DROP FUNCTION pglimit_log_frees; DROP FUNCTION pglimit_log_step; ALTER TABLE pglimit_sliding_window_log DROP seen, DROP gap, DROP taken,
		DROP older_entries, DROP older_totals, DROP middle_entries, DROP middle_totals, DROP recent_entries, DROP recent_totals`)
	const limit, apart = 1000, time.Millisecond
	clock := new(conformance.Clock)
	p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: limit, Period: time.Hour, Durability: limiter.Relaxed}
	testworld.Exec(t, pool, `INSERT INTO pglimit_sliding_window_log (base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us, cost, granted, entries, totals, policy, key)
		SELECT 0, $1, $1, $2, $2, $3 + $1 * 1000, 0, $3 + $1 * 1000 + $2, 1, 1, array_agg($3 + i * 1000 ORDER BY i), array_agg(i - 1 ORDER BY i), 'p', 'k' FROM generate_series(1, $1::bigint) AS i`,
		int64(limit), p.Period.Microseconds(), clock.Now().UnixMicro())
	upWhileLocked(t, pool, "pglimit_sliding_window_log")
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
	clock.Set(limit * apart.Microseconds())
	if r := testworld.Must(t)(l.Allow(ctx, p, "k")); r.Allowed || r.RetryAfter != p.Period-(limit-1)*apart {
		t.Fatalf("full: %v, %v", r.Allowed, r.RetryAfter)
	}
	for i := range int64(limit) { // one leaves at each step
		clock.Set(p.Period.Microseconds() + (i+1)*apart.Microseconds())
		one, next := testworld.Must(t)(l.Allow(ctx, p, "k")), testworld.Must(t)(l.Allow(ctx, p, "k"))
		if !one.Allowed || next.Allowed || next.RetryAfter != apart && i < limit-1 {
			t.Fatalf("after %d: %v, then %v, %v", i, one.Allowed, next.Allowed, next.RetryAfter)
		}
		if i == 500 {
			testworld.Must(t)(l.Refund(ctx, p, "k", 5))
			testworld.Must(t)(l.AllowN(ctx, p, "k", 5))
		}
	}
}

// TestMigrateUpMovesGCRA: once gcra had its own table. Up moves the rows to pglimit_token_bucket,
// where they go on, although a transaction has locked them when it begins. If a key is in both
// tables, its fuller row counts.
func TestMigrateUpMovesGCRA(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour}
	testworld.Must(t)(l.AllowN(ctx, p, "both", 7))
	testworld.Must(t)(l.AllowN(ctx, p, "moved", 4))
	held := must.OK(l.Reserve(ctx, p.Request("moved", 5), time.Hour))(t)
	testworld.Exec(t, pool, `CREATE TABLE pglimit_gcra (LIKE pglimit_token_bucket INCLUDING ALL);
		CREATE VIEW pglimit_gcra_now AS SELECT policy, key, level FROM pglimit_gcra;
		CREATE OR REPLACE VIEW pglimit_keys AS `+strings.TrimSuffix(strings.TrimSpace(testworld.Value[string](t, pool, `SELECT pg_get_viewdef('pglimit_keys'::regclass)`)), ";")+`
			WHERE EXISTS (SELECT FROM pglimit_gcra_now);
		INSERT INTO pglimit_gcra SELECT * FROM pglimit_token_bucket;
		DELETE FROM pglimit_token_bucket WHERE key = 'moved';
		UPDATE pglimit_token_bucket SET level = 2;
		UPDATE pglimit_reservation SET algorithm = 'gcra';
		DELETE FROM pglimit_goose_db_version WHERE version_id = 9`)
	upWhileLocked(t, pool, "pglimit_gcra")
	if !testworld.Value[bool](t, pool, `SELECT to_regclass('pglimit_gcra') IS NULL AND to_regclass('pglimit_gcra_now') IS NULL`) {
		t.Error("the old table is still there")
	}
	must.OK(l.Settle(ctx, held.ID, 1))(t)
	for key, used := range map[string]float64{"both": 7, "moved": 5} {
		for _, a := range []limiter.Algorithm{limiter.GCRA, limiter.TokenBucket} { // which continue each other
			p.Algorithm = a
			if r := testworld.Must(t)(l.Check(ctx, p, key, 0)); math.Abs(r.Level-used) > 0.1 {
				t.Errorf("%s under %s: level %v, want %v", key, a, r.Level, used)
			}
		}
	}
}
