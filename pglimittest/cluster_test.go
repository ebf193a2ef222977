package pglimittest

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestCitus starts a cluster, as PGLIMIT_TEST_BACKEND=citus does: each test gets a copy of a
// template on all nodes, which work together, even after a worker was killed.
func TestCitus(t *testing.T) {
	t.Setenv(envBackend, kindCitus)
	s, err := StartOwn(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if s.Backend() != kindCitus || len(s.Workers()) != 2 {
		t.Fatalf("%s, %d workers", s, len(s.Workers()))
	}
	template, err := s.Template(t.Context(), "citus", func(ctx context.Context, pool *pgxpool.Pool) error {
		for _, sql := range []string{"create table t (k int primary key)", "select create_distributed_table('t', 'k', shard_count => 4)", "insert into t select generate_series(1, 100)"} {
			if _, err := pool.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
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
	for variable, kind := range map[string]string{SharedURL: kindShared, envURL: kindURL} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv(variable, s.URL())
			other, err := Start(t.Context(), t.Logf)
			if err != nil {
				t.Fatal(err)
			}
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

	t.Run("Pool", func(t *testing.T) {
		t.Setenv(SharedURL, s.URL())
		var own commonServer
		migrated, err := own.template()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := own.close(); err != nil {
				t.Error(err)
			}
		})
		if on := query(t, migrated.New(t), nodes+" where table_name = 'pglimit_gcra'::regclass"); on != "2" {
			t.Errorf("the limit tables are on %s nodes, want 2", on)
		}
	})

	address := template.New(t)
	worker := s.Workers()[0]
	if err := worker.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := execOn(t.Context(), address, "select count(*) from t"); err == nil {
		t.Error("all shards can be read without a worker")
	}
	if err := worker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query(t, address, "select count(*)::text from t"); n != "100" {
		t.Errorf("after the worker's restart t holds %s rows, want 100", n)
	}
	for i, address := range s.servers() {
		if n := query(t, address, "select count(*)::text from pg_database where starts_with(datname, 'pglimit_other_')"); n != "0" {
			t.Errorf("node %d has %s databases of what has ended", i, n)
		}
	}
}

// TestCitusNeedsACoordinator: a server that is no coordinator is not used as one.
func TestCitusNeedsACoordinator(t *testing.T) {
	t.Setenv(envBackend, kindCitus)
	t.Setenv(envURL, shared.URL())
	s, err := Start(t.Context(), t.Logf)
	if err == nil {
		s.Close()
		t.Fatal("a single server was accepted")
	}
	if !strings.Contains(err.Error(), "PGLIMIT_TEST_BACKEND is citus, but this is not the coordinator") {
		t.Errorf("error %v, want one that names the variable", err)
	}
	if _, err := StartOwn(t.Context(), t.Logf, OverTCP); err == nil || !strings.Contains(err.Error(), "OverTCP") {
		t.Errorf("over TCP: error %v", err)
	}
}

func TestNodeURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p@h:1/a?sslmode=disable": "postgres://u:p@/a?host=w&port=7&sslmode=disable",
		"postgres://u@/a?host=h&port=1":        "postgres://u@/a?host=w&port=7",
		"host=h port=1 dbname=a":               "host=h port=1 dbname=a host='w' port=7",
	} {
		if got, err := nodeURL(address, node{"w", 7}); got != want || err != nil {
			t.Errorf("nodeURL(%q) = %q, %v; want %q", address, got, err, want)
		}
	}
}
