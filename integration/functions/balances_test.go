package functions

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// prepaid is the base of histories of balances.
var prepaid = limiter.Policy{Name: "prepaid", Algorithm: limiter.Balance}

// TestFunctionsBalanceAsGo: grants and requests by functions, by the policy's name, answer as the
// library does and leave the same rows.
func TestFunctionsBalanceAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Operations: search.Without(search.Balances, "begin", "commit", "rollback", "undo", "all", "once"), Shadows: true}
	testworld.SearchFunctions(t, d, 60, testworld.Functions{ByName: true}, prepaid)
	d.Operations += " all all all all" // whose denials leave other rows
	testworld.SearchFunctions(t, d, 60, testworld.Functions{ByName: true, Q: testworld.FunctionsPool(t)}, prepaid)
}

// TestFunctionsBalanceErrors: bad arguments of grant name the parameter, and functions that a
// balance does not have say so. None changes a row.
func TestFunctionsBalanceErrors(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm) VALUES ('credits', 'balance')`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('bucket', 'token_bucket', 1, 1)`)
	for call, want := range map[string]string{
		`grant('credits', 'k', 0)`:                                    "units",
		`grant('credits', 'k', 1, now() - interval '1 s')`:            "expires_at",
		`grant('credits', 'k', 1, 'infinity')`:                        "expires_at",
		`grant('credits', 'k', 1, priority => 1001)`:                  "priority",
		`grant('credits', 'k', 1, priority => NULL)`:                  "priority",
		`grant('credits', 'k', 1, source => repeat('x', 256))`:        "source",
		`grant('credits', '', 1)`:                                     "key",
		`grant('bucket', 'k', 1)`:                                     "has no grants",
		`allow('credits', 'k', 1, floor => 0.5)`:                      "floor",
		`grant('credits', 'k', 1, '2020-01-01', now => '2020-01-01')`: "expires_at",
		`grant('credits', 'k', -5)`:                                   "units is -5",
		`allow('credits', 'k', 1e-10)`:                                "cost",
	} {
		var none string
		err := pool.QueryRow(t.Context(), `SELECT (pglimit.`+call+`)::text`).Scan(&none)
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || !strings.Contains(answer.Message, want) {
			t.Errorf("%s: %v, want %q", call, err, want)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_balance`); n != 0 {
		t.Errorf("%d rows", n)
	}
	for range 100 {
		testworld.Exec(t, pool, `SELECT pglimit.grant('credits', 'k', 1)`)
	}
	if _, err := pool.Exec(t.Context(), `SELECT pglimit.grant('credits', 'k', 1)`); err == nil || !strings.Contains(err.Error(), "need a lot") {
		t.Error(err)
	}
}
