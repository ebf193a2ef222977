package decide

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

// TestDecideUpdatesStayHOT: every update of every table rewrites the row in place, for one
// hot key and for keys hit three times a period. No decision writes an indexed column, and
// a page is pruned before it is full.
//
// A page is pruned only of row versions that no running transaction of the server can see.
// So the test has a separate server: other tests keep transactions open on purpose, and an
// autovacuum may take long.
func TestDecideUpdatesStayHOT(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own := testworld.OwnServer(t, pglimittest.Setting("autovacuum", "off"))
	template := must.OK(own.Template(ctx, "hot", migrations.Up))(t)
	hits, rounds := testworld.Size(int64(300), 1000), testworld.Size(60, 200) // a page is full after about 80 versions of a row
	for _, p := range testworld.Variants(1000, time.Minute) {
		t.Run(testworld.Variant(p), func(t *testing.T) {
			pool := testworld.Connect(t, template.New(t))
			clock := new(conformance.Clock)
			l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})

			for i := range hits { // a millisecond apart
				clock.Set(i * 1000)
				testworld.Must(t)(l.Allow(ctx, p, "hot"))
			}
			first := stayedHOT(t, pool, p, "a hot key", hotCount{}, hits-1)

			at := int64(10_000_000_000)
			for range rounds { // a third of a period apart
				at += expiry(p).Microseconds() / 3
				clock.Set(at)
				for key := range 5 {
					testworld.Must(t)(l.Allow(ctx, p, fmt.Sprint("spread", key)))
				}
			}
			stayedHOT(t, pool, p, "three hits a period", first, 5*int64(rounds-1))
		})
	}
}

// expiry returns how long a key of p that is used once counts.
func expiry(p limiter.Policy) time.Duration {
	if p.Algorithm == limiter.SlidingWindowCounter {
		return 2 * p.Period
	}
	return p.Period
}

type hotCount struct{ updates, hot int64 }

// stayedHOT waits until the server has counted updates more than before.
func stayedHOT(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, what string, before hotCount, updates int64) (c hotCount) {
	t.Helper()
	pool.Reset() // a session reports its counters when it ends
	testworld.Eventually(t, "the updates are counted", func(ctx context.Context) (bool, error) {
		err := pool.QueryRow(ctx,
			"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", testworld.TableOf(p.Algorithm)).Scan(&c.updates, &c.hot)
		return c.updates >= before.updates+updates, err
	})
	share := float64(c.hot-before.hot) / float64(c.updates-before.updates)
	t.Logf("%s: %.2f %% of %d updates HOT", what, 100*share, c.updates-before.updates)
	if share < 1 {
		t.Errorf("%s: only %.2f %% of the updates were HOT", what, 100*share)
	}
	return c
}
