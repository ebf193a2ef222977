package bed

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// Exec runs statements that have to succeed.
func Exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value reads the one value that a query returns.
func Value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
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
