package testworld

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

// Server returns the server that the package's tests share.
func Server() *pglimittest.Server { return server }

// OwnServer starts a server for this test alone.
func OwnServer(t *testing.T, options ...pglimittest.Option) *pglimittest.Server {
	t.Helper()
	s, err := pglimittest.StartOwn(t.Context(), log.Printf, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// migrated has pglimit's tables.
var migrated = template("migrated", prepareWorld)

// withFunctions has pglimit's tables and SQL functions.
var withFunctions = template("functions", prepareFunctions)

// empty has no tables.
var empty = template("empty", func(context.Context, *pgxpool.Pool) error { return nil })

// template makes a template when a test first needs it.
func template(name string, prepare func(context.Context, *pgxpool.Pool) error) func(testing.TB) *pglimittest.Template {
	once := sync.OnceValues(func() (*pglimittest.Template, error) {
		return server.Template(context.Background(), name, prepare)
	})
	return func(t testing.TB) *pglimittest.Template {
		t.Helper()
		_ = Size(0, 1) // go test caches results by the variables that tests read, and does not see Main
		made, err := once()
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
}

// NewDatabase makes a migrated database for this test and returns its URL in the world of
// the tests.
func NewDatabase(t testing.TB) string {
	t.Helper()
	return inWorld(t, migrated(t).New(t))
}

// EmptyDatabase makes a database without any tables for this test and returns
// its URL.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	return empty(t).New(t)
}

// NewPool makes a migrated database for this test and connects to it.
func NewPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, NewDatabase(t))
}

// Connect opens a pool that closes when the test ends. It applies each change to the
// configuration first.
func Connect(t testing.TB, url string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// DB returns a *sql.DB over the connections of a pool. It closes when the test ends.
func DB(t testing.TB, pool *pgxpool.Pool) *sql.DB {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Setting sets a server setting for all connections of a pool.
func Setting(name, value string) func(*pgxpool.Config) {
	return func(config *pgxpool.Config) { config.ConnConfig.RuntimeParams[name] = value }
}

// Connections is the most connections that a pool opens.
func Connections(n int32) func(*pgxpool.Config) {
	return func(config *pgxpool.Config) { config.MaxConns = n }
}

// OneConnection is for tests that inspect the session; FourConnections is the default
// minimum of a pool.
var OneConnection, FourConnections = Connections(1), Connections(4)

// Latin1 makes a migrated database for this test whose encoding is LATIN1, and returns its
// URL.
func Latin1(t *testing.T) string {
	t.Helper()
	address := NewDatabase(t)
	pool := Connect(t, address)
	name := Value[string](t, pool, "SELECT current_database()") + "_latin1"
	Exec(t, pool, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	u := WithQuery(t, address, "client_encoding", "UTF8")
	u.Path = "/" + name
	if err := migrations.Up(t.Context(), Connect(t, u.String())); err != nil {
		t.Fatal(err)
	}
	return u.String()
}

// WithQuery returns an address with another parameter.
func WithQuery(t testing.TB, address, name, value string) *url.URL {
	t.Helper()
	u := parse(t, address)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u
}

func parse(t testing.TB, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// ConnectOnce connects for work after a test, when its pools are closed.
func ConnectOnce(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Exec runs statements and fails the test on an error.
func Exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	if owner := ownerOf(t, pool, err); owner != nil {
		defer owner.Close(t.Context())
		_, err = owner.Exec(t.Context(), sql, args...)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value returns the single value of a query.
func Value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	err := pool.QueryRow(t.Context(), sql, args...).Scan(&v)
	if owner := ownerOf(t, pool, err); owner != nil {
		defer owner.Close(t.Context())
		err = owner.QueryRow(t.Context(), sql, args...).Scan(&v)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Commit commits a transaction.
func Commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Begin begins a transaction that is rolled back when the test ends.
func Begin(t testing.TB, pool interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}, options pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// InTxOf runs f in a transaction that is committed.
func InTxOf[R any](t *testing.T, pool interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}, l *limiter.Limiter, f func(*limiter.Tx) (R, error)) (R, error) {
	t.Helper()
	tx := Begin(t, pool, pgx.TxOptions{})
	r, err := f(l.InTx(tx))
	return r, errors.Join(err, tx.Commit(context.Background()))
}
