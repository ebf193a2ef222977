package functions

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// slots is the base of histories of slots.
var slots = limiter.Policy{Name: "slots", Algorithm: limiter.Concurrency, Limit: 2, Period: 10 * time.Second}

// TestFunctionsAcquireAsGo: slots by functions, with the policy in the call and by its name, answer
// as the library does and leave the same rows.
func TestFunctionsAcquireAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Operations: search.Without(search.Slots, "begin", "commit", "rollback", "sweep")}
	testworld.SearchFunctions(t, d, 40, testworld.Functions{}, slots)
	d.Names = 1
	testworld.SearchFunctions(t, d, 40, testworld.Functions{ByName: true}, slots)
}

// TestFunctionsAcquireInTx: a slot counts with the transaction that it is part of, an override
// blocks and lifts, and a slot that was released is an error of both functions.
func TestFunctionsAcquireInTx(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('exports', 'concurrency', 1, 3600)`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, blocked) VALUES ('exports', 'mallory', true)`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('exports', 'root', true)`)
	tx := must.OK(pool.Begin(ctx))(t)
	must.OK(tx.Exec(ctx, `SELECT pglimit.acquire('exports', 'acme')`))(t)
	must.Succeed(t, tx.Rollback(ctx))
	slot := testworld.Value[string](t, pool, `SELECT slot FROM pglimit.acquire('exports', 'acme')`)
	for key, want := range map[string]string{"acme": "false limit", "mallory": "false blocked", "root": "true "} {
		if got := testworld.Value[string](t, pool, `SELECT allowed::text || ' ' || coalesce(reason, '') FROM pglimit.acquire('exports', $1)`, key); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	testworld.Exec(t, pool, `SELECT pglimit.renew($1, 7200)`, slot)
	testworld.Exec(t, pool, `SELECT pglimit.release($1)`, slot)
	for _, call := range []string{`SELECT pglimit.renew($1)::text`, `SELECT pglimit.release($1)::text`} {
		var none string
		err := pool.QueryRow(ctx, call, slot).Scan(&none)
		if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) || answer.Code != "P0002" {
			t.Errorf("%s: %v", call, err)
		}
	}
	for _, call := range []string{
		`SELECT pglimit.acquire('exports', 'acme', cost => 1.5)::text`, `SELECT pglimit.acquire('exports', 'acme', ttl_s => 0.5)::text`,
		`SELECT pglimit.acquire_with('p', 'k', limit_units => 1.5, period_s => 10)::text`, `SELECT pglimit.acquire_with('p', 'k', limit_units => 1, period_s => 0.1)::text`,
		`SELECT pglimit.release('attempts:2QJ6XJZK4R3PLD5W7NBAHT6EYC:p:YWxpY2U')::text`,
	} {
		var none string
		err := pool.QueryRow(ctx, call).Scan(&none)
		if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) || answer.Code != "22023" {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// TestFunctionsOfOtherAlgorithms: the functions of limits refuse policies of attempts and of
// concurrency, with the functions to use instead.
func TestFunctionsOfOtherAlgorithms(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, block_for_s) VALUES ('concurrency', 'concurrency', 1, 60, 0), ('attempts', 'attempts', 3, 60, 60)`)
	for _, call := range []string{`allow($1, 'k')`, `allow_up_to($1, 'k', 2)`, `charge($1, 'k', 2)`, `refund($1, 'k', 2)`, `reserve($1, 'k', 2, 60)`, `"check"($1, 'k')`, `allow_all(ARRAY[$1], ARRAY['k'])`, `allow_any(ARRAY[$1], ARRAY['k'])`} {
		for name, use := range map[string]string{"concurrency": "pglimit.acquire", "attempts": "pglimit.attempt"} {
			_, err := pool.Exec(t.Context(), `SELECT pglimit.`+call, name)
			if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) || answer.Code != "0A000" || !strings.Contains(answer.Hint, use) {
				t.Errorf("%s of %s: %v", call, name, err)
			}
		}
	}
}
