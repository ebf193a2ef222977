package cluster

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideAfterAFaultOfCitus: after some errors Citus runs functions on the node that is
// asked for the rest of a session. The limiter gives up such a session of its pool.
func TestDecideAfterAFaultOfCitus(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.PerHour("p", 5)
	testworld.Must(t)(l.Allow(ctx, p, "k"))
	_, err := pool.Exec(ctx, "WITH held AS MATERIALIZED (SELECT key FROM pglimit_token_bucket FOR UPDATE) SELECT key FROM held")
	if err == nil {
		t.Fatal("Citus executed a statement that brings the fault about")
	}
	if r := testworld.Must(t)(l.Allow(ctx, p, "k")); r.Remaining != 3 {
		t.Errorf("%v remain, want 3", r.Remaining)
	}
}

// TestDecideKeysOfTwoShards: a statement whose keys are not in one shard, as after a split
// that a limiter does not know of, counts nothing: in the first one's shard no later
// statement would find the others.
func TestDecideKeysOfTwoShards(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	placed := must.OK(shards.Read(ctx, pool))(t)
	in := map[bool]string{} // whether they are in the first shard
	for i := 0; len(in) < 2; i++ {
		key := fmt.Sprint("key-", i)
		in[placed.Of(key) == 0] = key
	}
	for _, keys := range [][]string{{in[true], in[false]}, {in[false], in[true]}} {
		_, err := db.New().TokenBucketTakeMany(ctx, exec.OnShard(pool, keys...), db.TokenBucketTakeManyParams{
			Keys: keys, Policies: []string{"p"}, Costs: []float64{1}, Counts: []float64{1}, Capacities: []float64{5}, Leaks: []float64{1e-9},
			LifetimesUs: []int64{1e9}, BlocksForUs: []int64{0},
		})
		if got := exec.SQLState(err); got != "PGL01" {
			t.Errorf("%q: SQLSTATE %q, %v", keys, got, err)
		}
	}
	if n := testworld.Value[int](t, pool, "SELECT sum(n) FROM run_command_on_shards('pglimit_token_bucket', 'SELECT count(*) FROM %s') AS r, LATERAL (SELECT r.result::int AS n) AS c"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}
