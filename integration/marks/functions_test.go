package marks

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// callers are the drivers that send the SQL functions.
func callers(t *testing.T, pool *pgxpool.Pool) map[string]func(sql string, args ...any) error {
	t.Helper()
	all := map[string]func(sql string, args ...any) error{
		"pgx": func(sql string, args ...any) error { _, err := pool.Exec(t.Context(), sql, args...); return err },
	}
	for _, driver := range testworld.SQLDrivers {
		db := testworld.ConnectSQL(t, driver, pool.Config().ConnString())
		all["database/sql of "+driver] = func(sql string, args ...any) error {
			_, err := db.ExecContext(t.Context(), sql, args...)
			return err
		}
	}
	return all
}

// TestMarksInFunctions: each SQL function that consumes by a policy's name records marks as the
// library does, over each driver, and in the same windows: a decision of the library records none of
// them again.
func TestMarksInFunctions(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	policies := marked(10)
	for i := range policies {
		policies[i].MaxKeys = int64(1000 * (i % 2)) // a bound has another path
		testworld.StorePolicy(t, pool, policies[i], true)
	}
	for name, call := range callers(t, pool) {
		for _, p := range policies {
			for i, verb := range []string{
				`pglimit.allow($1, $2, %v)`, `pglimit.allow_up_to($1, $2, %v)`, `pglimit.charge($1, $2, %v)`, `pglimit.reserve($1, $2, %v, 60)`, `pglimit.reserve_up_to($1, $2, %v, 60)`,
				`pglimit_ask.allow($1, $2, %v)`, `pglimit_ask.charge($1, $2, %v)`,
				`pglimit.allow_all(ARRAY[$1], ARRAY[$2], ARRAY[%v::float8])`, `pglimit.allow_any(ARRAY[$1], ARRAY[$2], %v)`, `pglimit.allow_any(ARRAY[$1], ARRAY[$2], %v, true)`,
			} {
				key := fmt.Sprint(name, i)
				for _, step := range []struct {
					cost  float64
					marks []int64
				}{{7, nil}, {1.5, []int64{most}}, {0.5, []int64{most}}, {1, []int64{most, all}}} {
					if strings.Contains(verb, "charge") && step.cost == 1 {
						step.cost = 2 // up to the burst: of less a bucket has leaked some
					}
					if err := call(fmt.Sprintf("SELECT "+strings.ReplaceAll(strings.ReplaceAll(verb, "$1", "$1::text"), "$2", "$2::text"), step.cost), p.Name, key); err != nil {
						t.Fatalf("%s, %s: %v", name, verb, err)
					}
					expect(t, pool, p, key, step.marks...)
				}
				testworld.Must(t)(l.Charge(t.Context(), p, key, 1))
				expect(t, pool, p, key, most, all)
			}
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_event WHERE mark = 800000 AND level NOT BETWEEN 8.4 AND 8.6`); n > 0 {
		t.Errorf("%d marks are of another level", n)
	}
	if err := callers(t, pool)["pgx"](`SELECT pglimit.check('variant-0', 'k', 9), pglimit.usage('variant-0', 'k'), pglimit.allow('variant-0', 'k', 11)`); err != nil {
		t.Error(err)
	}
	expect(t, pool, policies[0], "k")
}

// TestMarksOfSeveralInFunctions: allow_all and allow_any record the marks of each key as the library
// does: of what is granted; of a denial what is in use; and nothing of what is rolled back.
func TestMarksOfSeveralInFunctions(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	policies := marked(10)
	full := limiter.Policy{Name: "full", Algorithm: limiter.TokenBucket, Limit: 1, Period: hourly.Period}
	for _, p := range append(policies, full) {
		testworld.StorePolicy(t, pool, p, false)
	}
	testworld.Must(t)(l.Allow(t.Context(), full, "k"))
	call := func(sql string, commit bool, requests ...limiter.Request) {
		t.Helper()
		var names, keys []string
		var costs []float64
		for _, in := range requests {
			names, keys, costs = append(names, in.Policy.Name), append(keys, in.Key), append(costs, in.Cost)
		}
		args := []any{names, keys, costs}
		if strings.Contains(sql, "any") {
			args[2] = costs[0]
		}
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		var answer string
		must.Succeed(t, tx.QueryRow(t.Context(), sql, args...).Scan(&answer))
		if !commit {
			must.Succeed(t, tx.Rollback(context.Background()))
			return
		}
		testworld.Commit(t, tx)
	}
	const together, first, split = `SELECT pglimit.allow_all($1, $2, $3)::text`, `SELECT pglimit.allow_any($1, $2, $3)::text`, `SELECT pglimit.allow_any($1, $2, $3, true)::text`
	call(together, false, ofEach(policies, "rolled back", 9)...)
	call(together, true, ofEach(policies, "granted", 9)...)
	reserveAndSpend(t, l, ofEach(policies, "spent", 1))
	call(together, true, append(append(ofEach(policies, "spent", 1), ofEach(policies, "free", 9)...), full.Request("k", 1))...)
	reserveAndSpend(t, l, ofEach(policies[:1], "first", 1))
	call(first, true, ofEach(policies[:3], "first", 8)...)
	call(split, true, ofEach(policies, "split", float64(10*len(policies)))...)
	reserveAndSpend(t, l, ofEach(policies, "denied", 1))
	call(split, true, ofEach(policies, "denied", float64(5*len(policies)))...)
	for i, p := range policies {
		expect(t, pool, p, "rolled back")
		expect(t, pool, p, "granted", most)
		expect(t, pool, p, "spent", most)
		expect(t, pool, p, "free")
		expect(t, pool, p, "first", []int64{most, most}[:max(0, min(1, 2-i))]...) // two are asked
		expect(t, pool, p, "split", most, all)
		expect(t, pool, p, "denied", most)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_event WHERE key IN ('spent', 'denied') AND level NOT BETWEEN 8.99 AND 9.01`); n > 0 {
		t.Errorf("%d marks of denials are of another level than 9", n)
	}
	order := testworld.Value[[]string](t, pool, `SELECT ARRAY[string_agg(policy, ' ' ORDER BY ctid), string_agg(policy, ' ' ORDER BY `+lockOrder+`)] FROM pglimit_event WHERE key = 'granted'`)
	if order[0] != order[1] {
		t.Errorf("events were inserted in the order %q, not %q", order[0], order[1])
	}
}
