package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/migrate/sets"
)

// schemaFaults change the tables under the load. Requests wait for the locks that this
// takes, or end in the errors of locked rows.
var schemaFaults = []fault{
	{name: "migrations down and up", do: migrate},
	{name: "ALTER TABLE, VACUUM FULL, CLUSTER", do: alter},
	{name: "column types, of cached plans", do: changeTypes},
}

// tables are those that requests write.
func tables() (names []string) {
	for _, a := range algorithm.Tables {
		names = append(names, "pglimit_"+string(a))
	}
	return append(names, "pglimit_reservation", "orders")
}

// migrate goes down to the oldest version that the load can work with, its tables and their
// settings, and up again, and to the version before the newest.
func migrate(ctx context.Context, t *testing.T, s *scene) {
	const tablesOnly, newest = 2, 7
	for range 3 {
		for _, to := range []int64{tablesOnly, newest - 1, newest} {
			if _, err := sets.Tables.Down(ctx, s.pool, to); err != nil {
				t.Errorf("down to %d: %v", to, err)
			}
			if err := sets.Tables.Up(ctx, s.pool); err != nil {
				t.Errorf("up from %d: %v", to, err)
			}
		}
	}
}

// alter runs the commands that operators use on tables in production, and keeps a table
// locked for as long as a request waits for its answer.
func alter(ctx context.Context, t *testing.T, s *scene) {
	for _, table := range tables() {
		for _, command := range []string{
			"ALTER TABLE %s ADD COLUMN more bigint NOT NULL DEFAULT 1",
			"ALTER TABLE %s ADD COLUMN later timestamptz DEFAULT clock_timestamp()", // writes all rows again
			"CREATE INDEX CONCURRENTLY more_%[1]s ON %[1]s (more)",
			"ALTER TABLE %s SET (fillfactor = 80)",
			"REINDEX TABLE CONCURRENTLY %s",
			"VACUUM FULL %s",
			"CLUSTER %[1]s USING %[1]s_pkey",
			"ANALYZE %s",
			"DROP INDEX CONCURRENTLY more_%s",
			"ALTER TABLE %s DROP COLUMN more, DROP COLUMN later",
		} {
			testworld.Exec(t, s.pool, fmt.Sprintf(command, table))
		}
	}
	for _, table := range tables() {
		s.lockTable(ctx, t, table, 500*time.Millisecond)
	}
}

// lockTable keeps all others from a table for a while, as a command that writes it again
// does.
func (s *scene) lockTable(ctx context.Context, t *testing.T, table string, d time.Duration) {
	t.Helper()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		s.let(d)
		return nil
	})
	if err != nil {
		t.Errorf("lock %s: %v", table, err)
	}
}

// changeTypes gives a column that every decision returns another type and back. The plans
// that sessions have prepared no longer fit: PostgreSQL refuses them once.
func changeTypes(ctx context.Context, t *testing.T, s *scene) {
	_, before := s.times.count()
	for range 3 {
		for _, kind := range []string{"real", "double precision"} {
			for _, a := range algorithm.Tables {
				testworld.Exec(t, s.pool, fmt.Sprintf("ALTER TABLE pglimit_%s ALTER COLUMN granted TYPE %s", a, kind))
			}
			s.let(200 * time.Millisecond)
		}
	}
	if _, failed := s.times.count(); failed == before {
		t.Error("no transaction had to be run again: no plan was in the way")
	}
}
