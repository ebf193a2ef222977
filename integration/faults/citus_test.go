package faults

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations/citus"
	"github.com/pglimit/pglimit/pglimittest"
)

// citusFaults are those of a Citus cluster, a coordinator with two workers that have the keys
// and the orders. A transaction for keys of both commits in two phases.
var citusFaults = []fault{
	{name: "Citus: kill -9 of a worker", quick: true, do: killWorker, causes: []error{limiter.ErrUnavailable}},
	{name: "Citus: kill -9 of the coordinator", quick: true, do: killCoordinator, causes: []error{limiter.ErrUnavailable}},
	{name: "Citus: shards move", quick: true, do: moveShards},
	{name: "Citus: shards are split", quick: true, do: splitShards},
	{name: "Citus: a row held on a worker", quick: true, do: holdRow, causes: []error{limiter.ErrLocked}},
}

// onCluster returns them, all on the same cluster.
func onCluster(t *testing.T) []fault {
	own := testworld.OwnServer(t, durable)
	all := slices.Clone(citusFaults)
	for i := range all {
		all[i].server = func(t *testing.T) *server {
			return &server{
				url: own.URL, kill: own.Kill, restart: own.Restart, local: true,
				create: func() string { return createJoined(t, own) }, workers: own.Workers(),
			}
		}
	}
	return all
}

// createJoined creates a database on all nodes.
func createJoined(t *testing.T, own *pglimittest.Server) (address string) {
	t.Helper()
	address, _, err := own.CreateDatabase(t.Context(), "faults")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// distribute distributes the tables, orders too, if the server is a cluster.
func (s *scene) distribute(t *testing.T) {
	t.Helper()
	if len(s.server.workers) == 0 {
		return
	}
	const shards = 8
	must.Succeed(t, citus.Distribute(t.Context(), s.pool, shards))
	testworld.Exec(t, s.pool, "SELECT create_distributed_table('orders', 'key', colocate_with => 'pglimit_token_bucket')")
}

// killWorker kills a worker and starts it again.
func killWorker(ctx context.Context, t *testing.T, s *scene) {
	w := s.server.workers[0]
	must.Succeed(t, w.Kill(ctx))
	// The callers of the load insist on keys of either worker.
	askAll(t, s.newLimiter(t), s.keysOf(t, s.server.workers[1]))
	must.Succeed(t, w.Restart(ctx))
	s.recover(ctx, t)
}

// keysOf returns keys, and whether the worker has their shards.
func (s *scene) keysOf(t *testing.T, w *pglimittest.Server) map[string]bool {
	t.Helper()
	config := must.OK(pgx.ParseConfig(w.URL()))(t)
	rows := must.OK(s.pool.Query(t.Context(), `SELECT key, n.nodename = $1 AND n.nodeport = $2 FROM (SELECT 'asked-' || i AS key FROM generate_series(1, 400) AS i) AS k
		JOIN pg_dist_placement AS p ON p.shardid = get_shard_id_for_distribution_column('pglimit_token_bucket'::regclass, key)
		JOIN pg_dist_node AS n ON n.groupid = p.groupid`, config.Host, int(config.Port)))(t)
	has := map[string]bool{}
	var key string
	var is bool
	must.OK(pgx.ForEachRow(rows, []any{&key, &is}, func() error { has[key] = is; return nil }))(t)
	return has
}

// newLimiter returns one that nothing makes impatient.
func (s *scene) newLimiter(t *testing.T) *limiter.Limiter {
	return testworld.NewLimiter(t, s.pool, &limiter.Config{DisableTimeout: true})
}

// askAll requests all keys at once, and expects an answer for those of which there says so
// and an error for the others.
func askAll(t *testing.T, l *limiter.Limiter, there map[string]bool) {
	t.Helper()
	p := limiter.Policy{Name: "asked", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	var asking sync.WaitGroup
	for key, is := range there {
		asking.Go(func() {
			if _, err := l.Allow(t.Context(), p, key); is != (err == nil) {
				t.Errorf("%s, whose worker is there: %v: %v", key, is, err)
			}
		})
	}
	asking.Wait()
}

// killCoordinator kills the coordinator and starts it again.
func killCoordinator(ctx context.Context, t *testing.T, s *scene) {
	must.Succeed(t, s.server.kill(ctx))
	must.Succeed(t, s.server.restart(ctx))
	s.pool.Reset()
	s.recover(ctx, t)
}

// recover ends the transactions that had committed on one node and were prepared on another,
// as Citus does by itself after citus.recover_2pc_interval, a minute.
func (s *scene) recover(ctx context.Context, t *testing.T) {
	eventually(t, "no transaction is prepared on a worker", func(context.Context) error {
		if _, err := s.pool.Exec(ctx, "SELECT recover_prepared_transactions()"); err != nil {
			return err
		}
		left, err := s.prepared(ctx)
		return unless(err == nil && left == 0, "%d are, %v", left, err)
	})
}

// prepared counts transactions that were prepared more than a second ago on the workers.
func (s *scene) prepared(ctx context.Context) (n int, err error) {
	rows, err := s.pool.Query(ctx, `SELECT result::int FROM run_command_on_workers($$
		SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND prepared < clock_timestamp() - interval '1 second'$$)`)
	if err != nil {
		return 0, err
	}
	counts, err := pgx.CollectRows(rows, pgx.RowTo[int])
	for _, c := range counts {
		n += c
	}
	return n, err
}

// moveShards moves shards from node to node, with all tables of each, over and over.
func moveShards(ctx context.Context, t *testing.T, s *scene) {
	moves := 0
	for end := time.Now().Add(testworld.Size(time.Second, 20*time.Second)); moves < 2 || time.Now().Before(end); moves++ {
		var shard int64
		var from, to string
		var fromPort, toPort int
		// The shard that follows the last one, to the other worker.
		must.Succeed(t, s.pool.QueryRow(ctx, `SELECT s.shardid, s.nodename, s.nodeport, n.nodename, n.nodeport
			FROM (SELECT DISTINCT shardid, nodename, nodeport FROM citus_shards WHERE table_name = 'pglimit_token_bucket'::regclass) AS s
			JOIN pg_dist_node AS n ON n.groupid <> 0 AND (n.nodename, n.nodeport) <> (s.nodename, s.nodeport)
			ORDER BY s.shardid OFFSET $1::int % 8 LIMIT 1`, moves).Scan(&shard, &from, &fromPort, &to, &toPort))
		mode := []string{"force_logical", "block_writes"}[moves%2]
		must.OK(s.pool.Exec(ctx, "CALL citus_cleanup_orphaned_resources()"))(t)
		must.OK(s.pool.Exec(ctx, "SELECT citus_move_shard_placement($1, $2, $3, $4, $5, $6::citus.shard_transfer_mode)", shard, from, fromPort, to, toPort, mode))(t)
	}
	t.Logf("shards moved %d times", moves)
}

// splitShards splits shards in two, one half on each worker, with all tables of each. So the
// numbers of the shards after them change, too. Some servers do not load the decoder by which
// Citus splits without blocking writes.
func splitShards(ctx context.Context, t *testing.T, s *scene) {
	l, keys := s.newLimiter(t), s.keysOf(t, s.server.workers[0])
	for key := range keys {
		keys[key] = true
	}
	for range 2 {
		must.OK(s.pool.Exec(ctx, "CALL citus_cleanup_orphaned_resources()"))(t)
		askAll(t, l, keys)
		// The first one of those with the most hashes.
		must.OK(s.pool.Exec(ctx, `SELECT citus_split_shard_by_split_points(shardid,
				ARRAY[((shardminvalue::bigint + shardmaxvalue::bigint) / 2)::text],
				(SELECT array_agg(nodeid ORDER BY nodeid) FROM pg_dist_node WHERE groupid <> 0), 'block_writes')
			FROM (SELECT * FROM pg_dist_shard WHERE logicalrelid = 'pglimit_token_bucket'::regclass
				ORDER BY shardminvalue::bigint - shardmaxvalue::bigint, shardid LIMIT 1) AS s`))(t)
		askAll(t, l, keys) // by the shards that it knows
		s.goOn(t, "after a split")
	}
	if n := testworld.Value[int](t, s.pool, "SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = 'pglimit_token_bucket'::regclass"); n != 10 {
		t.Errorf("there are %d shards, want 10", n)
	}
}

// holdRow locks a row that the load uses, by the coordinator and so on a worker. Requests
// for its key get ErrLocked, and those for other keys their answers.
func holdRow(ctx context.Context, t *testing.T, s *scene) {
	p := budgets[0]
	eventually(t, "the row is there", func(ctx context.Context) error {
		n := 0
		err := s.pool.QueryRow(ctx, "SELECT count(*) FROM "+testworld.TableOf(p.Algorithm)+" WHERE policy = $1 AND key = 'key-0'", p.Name).Scan(&n)
		return unless(err == nil && n == 1, "%d rows, %v", n, err)
	})
	tx := testworld.Begin(t, s.pool, pgx.TxOptions{})
	must.OK(tx.Exec(ctx, "SELECT FROM "+testworld.TableOf(p.Algorithm)+" WHERE policy = $1 AND key = 'key-0' FOR UPDATE", p.Name))(t)
	s.let(testworld.Size(1500*time.Millisecond, 5*time.Second)) // longer than a request waits for it
	eventually(t, "a request has waited for the row", func(context.Context) error {
		return unless(s.faults.hasMet(limiter.ErrLocked), "none has")
	})
	s.goOn(t, "while a row is held")
	must.Succeed(t, tx.Rollback(ctx))
}

// goOn waits until requests of several callers were answered after it was called.
func (s *scene) goOn(t *testing.T, when string) {
	t.Helper()
	since := time.Now()
	eventually(t, "requests are answered "+when, func(context.Context) error {
		_, n := s.times.p99(since, time.Now(), false)
		return unless(n > 2*callers, "%d were", n)
	})
}
