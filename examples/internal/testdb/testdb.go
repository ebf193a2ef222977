// Package testdb gives the tests of the examples databases.
package testdb

import (
	"context"
	"errors"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

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
