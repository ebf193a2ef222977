// Package without tests an application without package pglimittest. docs/library.md has its
// TestMain to copy.
package without

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

var pool *pgxpool.Pool

// TestMain runs the tests in a new schema of the database that DATABASE_URL names.
func TestMain(m *testing.M) {
	ctx, schema := context.Background(), fmt.Sprint("test_", time.Now().UnixNano())
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = schema
	if pool, err = pgxpool.NewWithConfig(ctx, config); err == nil {
		_, err = pool.Exec(ctx, "CREATE SCHEMA "+schema)
	}
	if err == nil {
		err = migrations.Up(ctx, pool)
	}
	if err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	_, _ = pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
	os.Exit(code)
}

// TestOrder takes a limit in a transaction that rolls back. Its key is of this test alone.
func TestOrder(t *testing.T) {
	l, err := limiter.New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	orders, failed := limiter.PerHour("orders", 1), errors.New("the order failed")
	for _, end := range []error{failed, nil} {
		err := limiter.RunTx(t.Context(), l, pool, nil, func(_ pgx.Tx, limits *limiter.Tx) error {
			r, err := limits.Allow(t.Context(), orders, t.Name())
			return errors.Join(err, r.Err(), end)
		})
		if !errors.Is(err, end) {
			t.Errorf("got %v, want %v", err, end)
		}
	}
}
