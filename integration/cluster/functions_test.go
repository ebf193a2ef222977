package cluster

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestAttemptsInFunctions: on a cluster the SQL functions of attempts refuse. Without that a
// report of any ticket ends the server's process, and with it all sessions.
func TestAttemptsInFunctions(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	ticket := testworld.Value[string](t, pool, "SELECT pglimit._reservation_id('attempts', repeat('ab', 16), 'login', 'alice')")
	for _, call := range []string{
		"pglimit.attempt_with('login', 'alice', 5, 3600, 1, 60, 2, 600, source => $1)",
		"pglimit.succeeded($1)",
		"pglimit.failed($1)",
	} {
		_, err := pool.Exec(t.Context(), "SELECT "+call, ticket)
		if e := new(pgconn.PgError); !errors.As(err, &e) || e.Code != "0A000" || e.Hint == "" {
			t.Errorf("%s: %v, want 0A000 with a hint", call, err)
		}
	}
}
