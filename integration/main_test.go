// Package integration tests pglimit over a real PostgreSQL server. Each test
// has databases of its own, so all run in parallel.
package integration

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/throwaway"
	"github.com/pglimit/pglimit/migrations"
)

var (
	server   *throwaway.Server
	migrated *throwaway.Template // has pglimit's tables
	empty    *throwaway.Template
)

func TestMain(m *testing.M) {
	log.SetFlags(0)
	code, err := runTests(m)
	if err != nil {
		log.Printf("integration: %v", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	server, err = throwaway.Start(ctx, log.Printf)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Close(), removeBinary()) }()
	if migrated, err = server.Template(ctx, "migrated", migrations.Up); err != nil {
		return 1, err
	}
	nothing := func(context.Context, *pgxpool.Pool) error { return nil }
	if empty, err = server.Template(ctx, "empty", nothing); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// newDatabase makes a migrated database for this test and returns its URL.
func newDatabase(t testing.TB) string {
	t.Helper()
	return migrated.New(t)
}

// emptyDatabase makes a database without any tables for this test and returns
// its URL.
func emptyDatabase(t testing.TB) string {
	t.Helper()
	return empty.New(t)
}

// newPool makes a migrated database for this test and connects to it.
func newPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return connect(t, newDatabase(t))
}

// connect opens a pool that closes when the test ends. Each change is made to
// its configuration first.
func connect(t testing.TB, url string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// setting sets a server setting for all connections of a pool.
func setting(name, value string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams[name] = value }
}

// exec runs statements that have to succeed.
func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// one reads the one value that a query returns.
func one[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// eventually polls the database until is returns true. It is for what the
// server does not announce, such as a statement that waits for a lock.
func eventually(t testing.TB, what string, is func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // against hanging for ever
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := is(ctx)
		if ok {
			return
		}
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = fmt.Errorf("it did not happen: %w", ctx.Err())
			}
		}
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// blocked counts the statements in pool's database that wait for a lock.
func blocked(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	err = pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'active' AND wait_event_type = 'Lock'`).Scan(&n)
	return n, err
}
