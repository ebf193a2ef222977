package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// TestTxCommitsNodesTogether: on a cluster, a transaction that requests keys of both workers
// commits in two phases. Citus keeps a record of each node until it cleans them up, which it
// may have done before the look.
func TestTxCommitsNodesTogether(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour}
	testworld.Eventually(t, "two nodes were prepared", func(ctx context.Context) (bool, error) {
		before := testworld.Value[int64](t, pool, "SELECT coalesce(max(xmin::text::bigint), 0) FROM pg_dist_transaction") // the migrations'
		tx, err := pool.Begin(ctx)
		if err != nil {
			return false, err
		}
		for i := range 16 { // of eight shards, so both have some
			testworld.Must(t)(l.InTx(tx).Allow(ctx, p, fmt.Sprint("key-", i)))
		}
		if err := tx.Commit(ctx); err != nil {
			return false, err
		}
		return testworld.Value[int](t, pool, "SELECT count(DISTINCT groupid) FROM pg_dist_transaction WHERE xmin::text::bigint > $1", before) == 2, nil
	})
}
