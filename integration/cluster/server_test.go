package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/pglimittest"
)

// query returns a statement's single value as text.
func query(t *testing.T, address, sql string) string {
	t.Helper()
	return testworld.Value[string](t, testworld.Connect(t, address), sql)
}

// TestCitusServer starts a cluster: each test gets a copy of a template on all nodes, which work
// together, even after a worker was killed.
func TestCitusServer(t *testing.T) {
	s := testworld.OwnServer(t)
	if s.Backend() != "citus" || len(s.Workers()) != 2 {
		t.Fatalf("%s, %d workers", s, len(s.Workers()))
	}
	template := must.OK(s.Template(t.Context(), "citus", func(ctx context.Context, pool *pgxpool.Pool) error {
		for _, sql := range []string{"create table t (k int primary key)", "select create_distributed_table('t', 'k', shard_count => 4)", "insert into t select generate_series(1, 100)"} {
			if _, err := pool.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	}))(t)
	const nodes = "select count(distinct nodename)::text from citus_shards"
	for range 2 {
		address := template.New(t)
		if rows, on := query(t, address, "insert into t values (0) returning 'one'"), query(t, address, nodes); rows != "one" || on != "2" {
			t.Errorf("wrote %s, the shards are on %s nodes, want 2", rows, on)
		}
		if n := query(t, address, "select count(*)::text from t"); n != "101" {
			t.Errorf("t holds %s rows, want 101", n)
		}
	}

	// Another process finds the nodes of a server that is shared or named.
	for variable, kind := range map[string]string{pglimittest.SharedURL: "shared", "PGLIMIT_TEST_DATABASE_URL": "url"} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv(variable, s.URL())
			if kind == "url" {
				t.Setenv(pglimittest.SharedURL, "")
			}
			other := must.OK(pglimittest.Start(t.Context(), t.Logf))(t)
			defer other.Close()
			address, drop, err := other.CreateDatabase(t.Context(), "other")
			if err != nil {
				t.Fatal(err)
			}
			if n := query(t, address, "select count(*)::text from pg_dist_node"); other.Backend() != kind || n != "3" {
				t.Errorf("%s has %s nodes, want 3", other, n)
			}
			if err := drop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}

	address := template.New(t)
	worker := s.Workers()[0]
	must.Succeed(t, worker.Kill(t.Context()))
	if _, err := testworld.Connect(t, address).Exec(t.Context(), "select count(*) from t"); err == nil {
		t.Error("all shards can be read without a worker")
	}
	must.Succeed(t, worker.Restart(t.Context()))
	if n := query(t, address, "select count(*)::text from t"); n != "100" {
		t.Errorf("after the worker's restart t holds %s rows, want 100", n)
	}
	for i, node := range append([]*pglimittest.Server{s}, s.Workers()...) {
		if n := query(t, node.URL(), "select count(*)::text from pg_database where starts_with(datname, 'pglimit_other_')"); n != "0" {
			t.Errorf("node %d has %s databases of what has ended", i, n)
		}
	}
}

// TestCitusPool: the limit tables of an application's tests are distributed.
func TestCitusPool(t *testing.T) {
	if on := testworld.Value[int](t, pglimittest.Pool(t), "select count(distinct nodename) from citus_shards where table_name = 'pglimit_token_bucket'::regclass"); on != 2 {
		t.Errorf("they are on %d nodes, want 2", on)
	}
}

// TestDatabasesAtOnce: processes that create databases at the same time do not disturb each
// other, although Citus sends all roles to a node that joins.
func TestDatabasesAtOnce(t *testing.T) {
	var working sync.WaitGroup
	for range 6 {
		working.Go(func() {
			s, err := pglimittest.Start(t.Context(), t.Logf)
			if err != nil {
				t.Error(err)
				return
			}
			_, drop, err := s.CreateDatabase(t.Context(), "atonce")
			if err == nil {
				err = drop(t.Context())
			}
			if err := errors.Join(err, s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	working.Wait()
}
