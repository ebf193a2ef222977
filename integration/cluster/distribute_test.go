package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/cluster"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/shards"
)

// TestCitusDistribute: the tables of keys and their rows move to shards and back. A second
// run does nothing, and roles keep their rights.
func TestCitusDistribute(t *testing.T) {
	ctx := t.Context()
	server := testworld.OwnServer(t)
	address, drop, err := server.CreateDatabase(ctx, "distribute")
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, drop(context.Background())) })
	pool := testworld.Connect(t, address)
	refused := func(d cluster.Distribution, want string) {
		t.Helper()
		if _, err := cluster.Distribute(ctx, pool, d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", d, err, want)
		}
	}
	refused(cluster.Distribution{}, "pglimit migrate up")
	must.Succeed(t, sets.Tables.Up(ctx, pool))
	for _, table := range testworld.LimitTables(t, pool) {
		testworld.InsertRows(t, pool, table, "p", 100, 0)
	}
	testworld.Exec(t, pool, `CREATE ROLE distribute_app LOGIN`)
	testworld.Exec(t, pool, `CREATE ROLE distribute_other LOGIN`)
	operators := grants.Roles{Operators: []string{"distribute_app"}}
	must.OK(grants.Apply(ctx, pool, operators))(t)
	data := testworld.Contents(t, pool)
	missing := func() (all []string) {
		t.Helper()
		app := testworld.Connect(t, address, testworld.Setting("role", "distribute_app"))
		run, reads, err := grants.Missing(ctx, testworld.DB(t, app))
		must.Succeed(t, err)
		return append(run, reads...)
	}

	plan := must.OK(cluster.PlanFor(ctx, pool, cluster.Distribution{Shards: 6}))(t)
	done := must.OK(cluster.Distribute(ctx, pool, cluster.Distribution{Shards: 6}))(t)
	if !slices.Equal(plan.Statements, done.Statements) || plan.Found.Shards != 0 {
		t.Errorf("planned %q of %+v, ran %q", plan.Statements, plan.Found, done.Statements)
	}
	again := must.OK(cluster.Distribute(ctx, pool, cluster.Distribution{}))(t)
	if c := again.Found; len(again.Statements) != 0 || c.Shards != 6 || len(c.Nodes) != 2 || c.Nodes[0].Shards != 3 || len(c.Local)+len(c.Missing)+c.Lost != 0 || c.Outdated {
		t.Errorf("a second run found %+v, ran %q", c, again.Statements)
	}
	if got := testworld.Contents(t, pool); got != data {
		t.Errorf("the shards hold:\n%s\nwant:\n%s", got, data)
	}
	if m := missing(); len(m) != 0 {
		t.Errorf("the role lacks %q", m)
	}
	if testworld.Value[bool](t, pool, `SELECT has_function_privilege('distribute_other', 'pglimit_shard(text, text[])', 'EXECUTE')`) {
		t.Error("any role may hold a shard")
	}
	m := must.OK(shards.Read(ctx, pool))(t)
	for i := range m.Len() {
		for _, key := range []string{m.Key(i), fmt.Sprint("k", i)} {
			place := testworld.Value[int](t, pool, `SELECT count(*) FROM pg_dist_shard AS s, pg_dist_shard AS o
				WHERE s.shardid = get_shard_id_for_distribution_column('pglimit_token_bucket', $1::text)
				AND o.logicalrelid = s.logicalrelid AND o.shardminvalue::bigint < s.shardminvalue::bigint`, key)
			if place != m.Of(key) {
				t.Errorf("key %q is in shard %d, not %d", key, place, m.Of(key))
			}
		}
		if m.Of(m.Key(i)) != i {
			t.Errorf("the key of shard %d is in shard %d", i, m.Of(m.Key(i)))
		}
	}

	refused(cluster.Distribution{Shards: 8}, "6 shards, not 8")
	if _, err := sets.Tables.Down(ctx, pool, migrate.Previous); !errors.Is(err, migrate.ErrDistributed) || !strings.Contains(err.Error(), "--undo") {
		t.Errorf("down: %v", err)
	}
	owner := pool
	pool = testworld.Connect(t, address, testworld.Setting("role", "distribute_app"))
	refused(cluster.Distribution{}, "does not own")
	worker := must.OK(pgx.ParseConfig(server.Workers()[0].URL()))(t)
	pool = testworld.Connect(t, address, func(c *pgxpool.Config) {
		c.ConnConfig.Host, c.ConnConfig.Port, c.ConnConfig.User = worker.Host, worker.Port, worker.User
	})
	refused(cluster.Distribution{}, "this is a worker")
	pool = owner

	testworld.Exec(t, pool, `COMMENT ON FUNCTION pglimit_shard(text, text[]) IS 'of another release'`)
	if done = must.OK(cluster.Distribute(ctx, pool, cluster.Distribution{}))(t); !done.Found.Outdated || len(done.Statements) == 0 {
		t.Errorf("functions of another release: found %+v, ran %q", done.Found, done.Statements)
	}
	must.OK(cluster.Distribute(ctx, pool, cluster.Distribution{Undo: true}))(t)
	if got := testworld.Contents(t, pool); got != data {
		t.Errorf("after the undo there is:\n%s\nwant:\n%s", got, data)
	}
	if m := missing(); len(m) != 0 {
		t.Errorf("after the undo the role lacks %q", m)
	}
	if left := must.OK(shards.Read(ctx, pool))(t); left != nil || testworld.Value[int](t, pool, `SELECT count(*) FROM pg_proc WHERE proname IN ('pglimit_shard', 'pglimit_on_shard')`) != 0 {
		t.Errorf("the undo left shards %v, or functions", left)
	}
	testworld.StepsDown(t, pool, 0, testworld.AllDown)
}
