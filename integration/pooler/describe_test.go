package pooler

import (
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/pooler"
)

// TestDescribePgBouncer: PgBouncer is described by its name, its mode and, if the user may
// know it, its version. What tells none is not named after PgBouncer, such as a server.
func TestDescribePgBouncer(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	for _, c := range []struct{ address, want string }{
		{address, `^one that does not tell its name$`},
		{startPgBouncer(t, address, 3), `^PgBouncer, of a version that it tells its administrators only, in transaction mode$`},
		{startPgBouncerOf(t, address, testworld.BouncerConfig{Connections: 3, Stats: true}), `^PgBouncer \d+\.\d+\.\d+ in transaction mode$`},
	} {
		pool := must.OK(pgxpool.New(t.Context(), c.address))(t)
		defer pool.Close()
		got, err := pooler.Describe(t.Context(), pool)
		if err != nil || !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("got %q, %v, want %s", got, err, c.want)
		}
	}
}
