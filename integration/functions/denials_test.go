package functions

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/deniallog"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// denialsOf returns the counts of a policy's denials by key and algorithm. A DenialLog writes them
// in a later minute, the functions in that of the denial.
func denialsOf(t *testing.T, pool *pgxpool.Pool, policy string) string {
	t.Helper()
	return testworld.Value[string](t, pool, `SELECT coalesce(string_agg(format('%s %s: %s denials, %s shadowed, %s blocked, %s above, %s units', algorithm, key, denials, shadowed, blocked, above, units), E'\n' ORDER BY algorithm, key), '')
		FROM (SELECT algorithm, key, sum(denials) AS denials, sum(shadowed) AS shadowed, sum(blocked) AS blocked, sum(above_burst) AS above, sum(units) AS units FROM pglimit_denial
			WHERE policy = $1 AND last_denied_at_us BETWEEN slot_us - CASE WHEN policy = 'counted' THEN 0 ELSE 600000000 END AND slot_us + 59999999 AND (retry_at_us > last_denied_at_us) = (denials > above_burst) GROUP BY 1, 2) AS d`, policy)
}

// TestFunctionsCountDenials: the functions count the denials of a policy with count_denials as
// a DenialLog does, and no others.
func TestFunctionsCountDenials(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.FunctionsPool(t)
	log, err := deniallog.New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := testworld.NewLimiter(t, pool, &limiter.Config{DenialLog: log})
	byName := &testworld.Functions{Q: pool, ByName: true}
	// sequence requests some units that fit, and some that do not.
	sequence := func(l verbs.Limiter, p limiter.Policy) {
		t.Helper()
		must, key := testworld.Must(t), testworld.Variant(p)
		for range 4 {
			must(l.AllowN(ctx, p, key, 1.5))
		}
		must(l.Check(ctx, p, key, 1.5))
		must(l.AllowUpTo(ctx, p, key, 1.5))
		must(l.Charge(ctx, p, key, 1.5))
		must(l.AllowN(ctx, p, key, 1.5))
		must(l.AllowN(ctx, p, "never", 100))
		if p.Algorithm == limiter.LeakyBucketQueue {
			return
		}
		if _, err := l.Reserve(ctx, p.Request("never", 100), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	variants := testworld.Variants(3, 800_000*time.Hour) // a millionth of the limit, which AllowUpTo grants, comes after 48 minutes
	blocking := variants[0]
	blocking.BlockFor = time.Hour
	for _, p := range append(variants, blocking) {
		for _, shadow := range []bool{false, true} {
			for name, counts := range map[string]bool{"counted": true, "silent": false} {
				p.Name, p.Shadow = name, shadow
				testworld.StorePolicy(t, pool, p, false)
				testworld.Exec(t, pool, `UPDATE pglimit_policy SET count_denials = $1 WHERE name = $2`, counts, name)
				sequence(byName, p)
			}
			p.Name = "go"
			sequence(l, p)
		}
	}
	if err := log.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := denialsOf(t, pool, "counted"), denialsOf(t, pool, "go"); got != want || got == "" {
		t.Errorf("the functions counted\n%s\nand the library\n%s", got, want)
	}
	if got := denialsOf(t, pool, "silent"); got != "" {
		t.Errorf("without count_denials: %s", got)
	}
}

// TestAskersLockKeepsNoCounts: an open transaction of an asker, who was denied, has locked a row
// of the counts. A DenialLog writes those of other keys, and then this.
func TestAskersLockKeepsNoCounts(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	log, err := deniallog.New(pool, &deniallog.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l := testworld.NewLimiter(t, pool, &limiter.Config{DenialLog: log})
	for _, key := range []string{"asked", "other"} {
		testworld.Must(t)(l.AllowN(t.Context(), limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}, key, 2))
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	// As pglimit_ask.allow does, for the minutes in which this test may run.
	if _, err := tx.Exec(t.Context(), `INSERT INTO pglimit_denial (denials, shadowed, blocked, above_burst, overloaded, units, slot_us, last_denied_at_us, retry_at_us, policy, key, algorithm)
		SELECT 1, 0, 0, 1, 0, 2, m * 60000000, m * 60000000, 0, 'p', 'asked', 'token_bucket'
		FROM generate_series(floor(extract(epoch FROM clock_timestamp()))::bigint / 60 - 1, floor(extract(epoch FROM clock_timestamp()))::bigint / 60 + 30) AS m`); err != nil {
		t.Fatal(err)
	}
	err = log.Flush(t.Context())
	if got, want := denialsOf(t, pool, "p"), "token_bucket other: 1 denials, 0 shadowed, 0 blocked, 1 above, 2 units"; err == nil || got != want {
		t.Errorf("beside a locked row: %v, wrote %q, want %q", err, got, want)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := log.Flush(t.Context()); err != nil || !strings.Contains(denialsOf(t, pool, "p"), "token_bucket asked: 1 denials") {
		t.Errorf("then: %v, wrote %q", err, denialsOf(t, pool, "p"))
	}
}

// TestFunctionsCountInTheTransaction: the count of a denial is part of the caller's transaction. A
// transaction that only reads counts nothing, and does not fail.
func TestFunctionsCountInTheTransaction(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, count_denials, askers) VALUES ('p', 'gcra', 1, 3600, true, true)`)
	const deny = `SELECT pglimit.allow('p', 'k', 2)`
	for _, c := range []struct {
		options pgx.TxOptions
		call    string
		commit  bool
		want    string
	}{
		{pgx.TxOptions{AccessMode: pgx.ReadOnly}, deny, true, ""},
		{pgx.TxOptions{}, deny, false, ""},
		{pgx.TxOptions{}, deny, true, "token_bucket k: 1 denials, 0 shadowed, 0 blocked, 1 above, 2 units"},
		{pgx.TxOptions{}, `SELECT pglimit_ask.allow('p', 'k', 2)`, true, "token_bucket k: 2 denials, 0 shadowed, 0 blocked, 2 above, 4 units"},
		{pgx.TxOptions{}, `SELECT pglimit.allow('p', 'k', 1)`, true, "token_bucket k: 2 denials, 0 shadowed, 0 blocked, 2 above, 4 units"},
	} {
		tx := testworld.Begin(t, pool, c.options)
		if _, err := tx.Exec(t.Context(), c.call); err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if c.commit {
			end = tx.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := denialsOf(t, pool, "p"); got != c.want {
			t.Errorf("after %s, committed %v: %q, want %q", c.call, c.commit, got, c.want)
		}
	}
}
