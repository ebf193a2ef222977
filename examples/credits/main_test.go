package main

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// TestRun: the program prints what its README shows, also again on the tables and rows of the first
// run.
func TestRun(t *testing.T) {
	t.Parallel()
	address := testdb.Empty.New(t)
	for range 2 {
		var out strings.Builder
		if err := run(t.Context(), address, &out); err != nil {
			t.Fatal(err)
		}
		testdb.InREADME(t, out.String())
	}
}

// TestOrderTwice: an order whose number is there already fails, and spends nothing.
func TestOrderTwice(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t, testdb.Migrated)
	if _, err := pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	s := &shop{pool, testdb.Limiter(t, pool, nil)}
	if err := s.paid(t.Context(), "ann", "invoice", 100_00); err != nil {
		t.Fatal(err)
	}
	if by, err := s.order(t.Context(), "ann", "1", 30_00); by != "credits" || err != nil {
		t.Fatalf("paid by %q, %v", by, err)
	}
	if _, err := s.order(t.Context(), "ann", "1", 30_00); err == nil {
		t.Error("an order was placed twice")
	}
	u, err := s.limits.Usage(t.Context(), credits, "ann")
	if err != nil || u.Spent != 30_00 || u.Granted != 100_00 || len(u.Lots) != 1 || u.Lots[0].Units != 70_00 {
		t.Errorf("after the second: %+v, %v", u, err)
	}
}
