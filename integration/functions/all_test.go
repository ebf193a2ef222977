package functions

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// threePolicies are one of each of three algorithms; b counts its denials.
const threePolicies = `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, block_for_s, count_denials, shadow) VALUES
	('a', 'fixed_window', 5, 3600, 0, false, false), ('b', 'token_bucket', 1, 3600, 60, true, false), ('c', 'fixed_window', 1, 3600, 0, true, true)`

// TestFunctionsAllowAllLocksInOrder: whatever the order of the call, allow_all locks rows by
// algorithm, policy and key, and those of shadows last. While it waits for one it has those before.
func TestFunctionsAllowAllLocksInOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, threePolicies)
	order := []struct{ table, policy, key string }{ // leaky_bucket … token_bucket, fixed_window
		{"token_bucket", "b", "k"}, {"fixed_window", "a", "B"}, {"fixed_window", "a", "a"}, {"fixed_window", "c", "k"},
	}
	testworld.Exec(t, pool, `SELECT pglimit.charge(n, k, 0.001) FROM unnest($1::text[], $2::text[]) AS u (n, k)`, []string{"b", "a", "a", "c"}, []string{"k", "B", "a", "k"})
	for held := range order {
		holder, caller := testworld.Begin(t, pool, pgx.TxOptions{}), testworld.Begin(t, pool, pgx.TxOptions{})
		lock := func(tx pgx.Tx, n int, how string) error {
			o := order[n]
			_, err := tx.Exec(ctx, `SELECT FROM pglimit_`+o.table+` WHERE policy = $1 AND key = $2 FOR UPDATE `+how, o.policy, o.key)
			return err
		}
		must.Succeed(t, lock(holder, held, ""))
		done := make(chan error, 1)
		go func() {
			_, err := caller.Exec(ctx, `SELECT pglimit.allow_all('{c,a,a,b}', '{k,a,B,k}', '{0.1,0.1,0.1,0.1}')`)
			done <- err
		}()
		testworld.AwaitBlocked(t, pool)
		for n, o := range order {
			if n == held {
				continue
			}
			probe := testworld.Begin(t, pool, pgx.TxOptions{})
			err := lock(probe, n, "NOWAIT")
			if locked := err != nil; locked != (n < held) {
				t.Errorf("while %v is held, %v is locked: %v (%v)", order[held], o, locked, err)
			}
			_ = probe.Rollback(ctx)
		}
		must.Succeed(t, holder.Rollback(ctx))
		if err := <-done; err != nil {
			t.Error(err)
		}
		must.Succeed(t, caller.Rollback(ctx))
	}
}

// TestFunctionsAllowAllDenies: a denial consumes nothing, starts the block of the key that
// denied, and is counted once, under the policy that denied.
func TestFunctionsAllowAllDenies(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, threePolicies)
	for _, c := range []struct{ costs, want string }{
		{`'{1,1,1}'`, "t NULL"},
		{`'{1,1,1}'`, "f 2"}, // the block of b begins
		{`NULL`, "f 2"},      // b is blocked
		{`'{100,1,1}'`, "f 1"},
	} {
		got := testworld.Value[string](t, pool, `SELECT format('%s %s', allowed, coalesce(denied_by::text, 'NULL')) FROM pglimit.allow_all('{a,b,c}', '{k,k,k}', `+c.costs+`)`)
		if got != c.want {
			t.Errorf("allow_all with costs %s: %s, want %s", c.costs, got, c.want)
		}
	}
	if got := testworld.Value[string](t, pool, `SELECT string_agg(format('%s %s', n, round((pglimit.check(n, 'k', 0)).level)), ', ') FROM unnest('{a,b,c}'::text[]) AS n`); got != "a 1, b 1, c 1" {
		t.Errorf("in use: %s", got)
	}
	if got := testworld.Value[string](t, pool, `SELECT (pglimit.check('b', 'k', 0)).reason`); got != "blocked" {
		t.Errorf("b is %s", got)
	}
	if got := denialsOf(t, pool, "b") + denialsOf(t, pool, "c"); got != "token_bucket k: 3 denials, 0 shadowed, 2 blocked, 0 above, 3 units" {
		t.Errorf("counted: %s", got)
	}
}

// TestFunctionsAllowAllRefuses: bad lists are refused, with the next step.
func TestFunctionsAllowAllRefuses(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, threePolicies)
	for call, message := range map[string]string{
		`'{}', '{}'`:                 "names is a list of 0: must have from 1 to 1000",
		`NULL, NULL`:                 "names is a list of 0: must have from 1 to 1000",
		`'{a,b}', '{k}'`:             "keys is a list of 1: names, keys and costs must be of one length",
		`'{a}', '{k}', '{1,2}'`:      "keys is a list of 1: names, keys and costs must be of one length",
		`'{a,a}', '{k,k}'`:           "keys is 'k': is there twice for policy a",
		`'{a,nobody}', '{k,k}'`:      "there is no policy of that name",
		`'{a}', '{k}', '{0}'`:        "cost is 0",
		`'{a}', ARRAY[NULL]::text[]`: "key is NULL",
	} {
		_, err := pool.Exec(t.Context(), `SELECT pglimit.allow_all(`+call+`)`)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || !strings.Contains(pg.Message, message) || pg.Hint == "" {
			t.Errorf("%s: %v, want %q", call, err, message)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_keys`); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// TestFunctionsAllowAnySplit: pools give what they have, in order, or nothing at all.
func TestFunctionsAllowAnySplit(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	for name, limit := range map[string]float64{"one": 3, "two": 2} {
		testworld.StorePolicy(t, pool, limiter.Policy{Name: name, Algorithm: limiter.FixedWindow, Limit: limit, Period: 1000 * time.Hour}, false)
	}
	for i, c := range []struct {
		cost  float64
		split bool
		want  string
	}{{4, true, "t 1 {3,1}"}, {2, true, "f 0 {0,0}"}, {2, false, "f 0 {0,0}"}, {1, false, "t 2 {0,1}"}, {6, true, "f 0 {0,0}"}} {
		got := testworld.Value[string](t, pool, `SELECT concat_ws(' ', allowed, coalesce(granted_by, 0), ARRAY(SELECT (r).granted FROM unnest(requests) AS r))
			FROM pglimit.allow_any(ARRAY['one', 'two'], ARRAY['k', 'k'], $1, split => $2)`, c.cost, c.split)
		if got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
}
