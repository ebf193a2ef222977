// Package testdb gives the tests of the examples databases.
package testdb

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/pglimittest"
)

// Migrated has the tables that Main's migrate created, Empty has none.
var Migrated, Empty *pglimittest.Template

// Main runs the tests of a package on a PostgreSQL server, removes the server, and exits
// with the tests' status. Call it in TestMain.
func Main(m *testing.M, migrate func(context.Context, *pgxpool.Pool) error) {
	log.SetFlags(0)
	code, err := run(m, migrate)
	if err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(m *testing.M, migrate func(context.Context, *pgxpool.Pool) error) (code int, err error) {
	ctx := context.Background()
	server, err := pglimittest.Start(ctx, log.Printf)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if Migrated, err = server.Template(ctx, "example", migrate); err != nil {
		return 1, err
	}
	nothing := func(context.Context, *pgxpool.Pool) error { return nil }
	if Empty, err = server.Template(ctx, "example_empty", nothing); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// Pool connects to a new database of the template, until the test ends.
func Pool(t *testing.T, template *pglimittest.Template) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), template.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Limiter returns a limiter over a pool. Config may be nil.
func Limiter(t *testing.T, pool *pgxpool.Pool, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	if config == nil {
		config = &limiter.Config{}
	}
	config.Timeout = time.Minute // machines that run tests may be slow
	l, err := limiter.New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// InREADME checks that the example's README.md shows what the program prints.
func InREADME(t *testing.T, printed string) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil || !strings.Contains(string(readme), "```\n"+printed+"```\n") {
		t.Errorf("README.md does not show what the program prints: %v\n%s", err, printed)
	}
}
