package decide

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var (
	sqlParameter = regexp.MustCompile(`sqlc\.n?arg\((\w+)\)`)
	tableOf      = regexp.MustCompile(`(?:insert into |update |from )(pglimit_[a-z_]+)\b`)
)

// namesOnly matches a sub-select that reads no table: it gives names to expressions.
var namesOnly = regexp.MustCompile(`\n +SubPlan \S+(?: \(returns [^)]*\))?(\n +->  (Subquery Scan on u\w*|Result))+$`)

// TestRoutersFormPlans explains the statements of a single key: the row of VALUES is a
// Result, with no sub-query between it and the Insert, and a key's row is found by the
// primary key.
func TestRoutersFormPlans(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"))(t)
	explained := 0
	for name, text := range testworld.Statements(t) {
		match := oneTable.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		verb := match[3]
		var want string
		switch verb {
		case "Take", "Charge", "Block":
			want = "Insert on TABLE\n  Conflict Resolution: UPDATE\n  Conflict Arbiter Indexes: TABLE_pkey\n"
			if match[2] == "Calendar" {
				want += "  Conflict Filter: (excluded.granted >= '0'::double precision)\n"
			}
			want += "  ->  Result"
		case "Leave", "Unblock":
			want = "Update on TABLE t\n  ->  Index Scan using TABLE_pkey on TABLE t\n        Index Cond: ((policy = '1'::text) AND (key = '1'::text))"
		case "Get":
			want = "Aggregate\n  ->  Index Scan using TABLE_pkey on TABLE t\n        Index Cond: ((policy = '1'::text) AND (key = '1'::text))"
		default:
			continue
		}
		if name == "SlidingWindowLogGet" || name == "BalanceGet" {
			want = strings.ReplaceAll(strings.Replace(want, "->  Index", "->  Nested Loop\n  ->  Index", 1), "\n  ", "\n        ") +
				"\n        ->  Subquery Scan on u\n              ->  Result"
			want = strings.Replace(want, "        ->  Nested", "  ->  Nested", 1)
		}
		explained++
		rows, err := tx.Query(ctx, "EXPLAIN (COSTS OFF) "+sqlParameter.ReplaceAllString(text, "'1'"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for len(lines) > 0 && strings.HasPrefix(strings.TrimSpace(lines[len(lines)-1]), "Filter: ") {
			lines = lines[:len(lines)-1]
		}
		got := strings.ReplaceAll(strings.Join(lines, "\n"), ` COLLATE "C"`, "")
		got = namesOnly.ReplaceAllString(got, "")
		if name == "TokenBucketTake" {
			t.Log("\n" + got)
		}
		want = strings.ReplaceAll(want, "TABLE", tableOf.FindStringSubmatch(text)[1])
		if got != want {
			t.Errorf("%s has the plan\n%s\nwant\n%s", name, got, want)
		}
	}
	if explained != 8+8+7+1+7+7 {
		t.Errorf("explained %d statements", explained)
	}
}

// TestPlannedOnce: after its first five runs PostgreSQL plans no usual statement again. It would
// if a parameter's value made the plan so much cheaper that planning seemed worth it.
func TestPlannedOnce(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.Connect(t, testworld.NewDatabase(t), testworld.Connections(1))
	l := must.OK(limiter.New(pool, nil))(t)
	defer l.Close()
	slots := limiter.Policy{Name: "slots", Algorithm: limiter.Concurrency, Limit: 1, Period: time.Minute}
	for range 10 {
		for _, a := range limiter.Algorithms() {
			p := limiter.Policy{Name: "plans", Algorithm: a, Limit: 100, Period: time.Hour}
			switch a {
			case limiter.Attempts, limiter.Concurrency:
				continue
			case limiter.Balance:
				p = limiter.Policy{Name: "plans", Algorithm: a, Overdraft: 100}
			}
			must.OK(l.Allow(ctx, p, "k"))(t)
			must.OK(l.Charge(ctx, p, "k", 1))(t)
			must.OK(l.Check(ctx, p, "k", 1))(t)
		}
		must.Succeed(t, l.Succeeded(ctx, begin(t, l, attempts, "k", "")))
		must.Succeed(t, l.Release(ctx, must.OK(l.Acquire(ctx, slots, "k"))(t).ID))
	}
	rows := must.OK(pool.Query(ctx, `SELECT statement FROM pg_prepared_statements AS s WHERE (to_jsonb(s) ->> 'custom_plans')::bigint > 5`))(t)
	for _, text := range must.OK(pgx.CollectRows(rows, pgx.RowTo[string]))(t) {
		t.Errorf("planned more than five times: %.60s", text)
	}
}
