package janitor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

func readState(t *testing.T, over any) janitor.State {
	t.Helper()
	return must.OK(statusOver(t.Context(), over))(t)
}

func statusOver(ctx context.Context, over any) (janitor.State, error) {
	if pool, ok := over.(*pgxpool.Pool); ok {
		return janitor.ReadState(ctx, pool)
	}
	return janitor.ReadStateSQL(ctx, over.(*sql.DB))
}

// TestStatusOfSweeps: a complete sweep is recorded with what it did, and the lease with its
// holder. Sweeps that are not complete are not recorded.
func TestStatusOfSweeps(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		ctx := t.Context()
		if s := readState(t, over); s.Holder != "" || !s.LeaseEndsAt.IsZero() || !s.SweptAt.IsZero() || s.SweptBy != "" || s.Took != 0 || s.DueRows != 0 || s.Lag != 0 || s.At.IsZero() {
			t.Errorf("without a sweep: %+v", s)
		}
		testworld.InsertRows(t, pool, "pglimit_leaky_bucket", "p", 3, 0)
		l := testworld.NewLimiter(t, pool, nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
		for range 2 {
			testworld.Reserve(t, l, p.Request("k", 4), time.Hour)
		}
		testworld.Exec(t, pool, `UPDATE pglimit_reservation SET expires_at_us = 1 WHERE id = (SELECT min(id) FROM pglimit_reservation)`)
		testworld.Exec(t, pool, `UPDATE pglimit_token_bucket SET expires_at_us = 2`)
		if s := readState(t, over); s.DueRows != 4 || s.ExpiredReservations != 1 || s.OpenReservations != 2 || s.Lag != s.At.Sub(time.UnixMicro(1)) {
			t.Errorf("before the sweep: %+v", s)
		}
		before := time.Now()
		sweep(t, testworld.NewJanitor(t, over, nil), map[string]int64{"pglimit_leaky_bucket": 3})
		s := readState(t, over)
		if s.Removed != 3 || s.Kept != 1 || s.ReservationsExpired != 1 || s.SweptBy == "" || s.Holder != "" ||
			s.SweptAt.Before(before.Add(-time.Second)) || s.SweptAt.After(s.At) || s.Took <= 0 || s.Took > time.Since(before) {
			t.Errorf("after the sweep: %+v", s)
		}
		if s.DueRows != 0 || s.ExpiredReservations != 0 || s.OpenReservations != 1 || s.Lag != 0 {
			t.Errorf("after the sweep there wait: %+v", s)
		}

		first := s
		clock := newHandClock()
		clock.us.Store(time.Now().UnixMicro())
		stop := newLeader(t, over, clock)
		s = readState(t, over)
		if s.Holder == "" || s.Holder != s.SweptBy || s.Holder == first.SweptBy || s.LeaseEndsAt.Sub(clock.now()) != lease || !s.SweptAt.Equal(clock.now()) || s.Removed != 0 {
			t.Errorf("while a janitor runs: %+v", s)
		}
		heldElsewhere(t, testworld.NewJanitor(t, over, &janitor.Config{Now: clock.now}))
		if other := readState(t, over); other.SweptBy != s.SweptBy {
			t.Errorf("a sweep of another janitor, which did nothing, is on record: %+v", other)
		}
		stop()

		// One table fails: the others are swept, and the sweep is not complete.
		testworld.InsertRows(t, pool, "pglimit_fixed_window", "p", 1, 0) // swept after pglimit_leaky_bucket
		testworld.Exec(t, pool, `ALTER TABLE pglimit_leaky_bucket RENAME TO away`)
		r, err := testworld.NewJanitor(t, over, nil).Sweep(ctx)
		if err == nil || !strings.Contains(err.Error(), "sweep pglimit_leaky_bucket:") || r.Total() != 1 || count(t, pool, "pglimit_lease") != 0 {
			t.Errorf("a sweep without a table: %+v, %v", r, err)
		}
		testworld.Exec(t, pool, `ALTER TABLE away RENAME TO pglimit_leaky_bucket`)
		if again := readState(t, over); again.SweptBy != s.SweptBy || again.Removed != 0 {
			t.Errorf("a sweep that failed is on record: %+v", again)
		}
		// The record itself fails: the sweep is done, and the error says so.
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 1, 0)
		testworld.Exec(t, pool, `DROP TABLE pglimit_sweep`)
		if r, err := testworld.NewJanitor(t, over, nil).Sweep(ctx); r.Total() != 1 || err == nil || !strings.Contains(err.Error(), "migrate up") || !strings.Contains(err.Error(), "which is done") {
			t.Errorf("a sweep without its record: %+v, %v", r, err)
		}
		if _, err := statusOver(ctx, over); err == nil || !strings.Contains(err.Error(), "migrate up") {
			t.Errorf("status without its table: %v", err)
		}
		if _, err := janitor.ReadState(ctx, nil); err == nil {
			t.Error("status of no pool")
		}
	})
}

// recorder records the settings that are sent.
type recorder []string

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "set_config") {
		*r = append(*r, data.SQL)
	}
	return ctx
}

func (*recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestStatusReadsIndexes: on large tables with old statistics, each part of the statement
// reads an index, and at most as many entries as it counts.
func TestStatusReadsIndexes(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	const rows, most = 5000, 4000
	for _, table := range testworld.LimitTables(t, pool) {
		testworld.InsertRows(t, pool, table, "p", rows, 0)
	}
	testworld.Exec(t, pool, `INSERT INTO pglimit_reservation SELECT 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, i, i, CASE WHEN i % 2 = 0 THEN 'open' ELSE 'settled' END, 'token_bucket', i, 'p', 'k', NULL FROM generate_series(1, $1::int) AS i`, rows)
	var sent recorder
	traced := testworld.Connect(t, address, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })
	readState(t, traced)
	for _, analyze := range []bool{false, true} {
		if analyze {
			testworld.Exec(t, pool, `ANALYZE`)
		}
		tx := testworld.Begin(t, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		for _, sql := range sent {
			must.OK(tx.Exec(t.Context(), sql))(t)
		}
		read := must.OK(tx.Query(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF, COSTS OFF) "+db.SweepWaiting, most, time.Now().UnixMicro()))(t)
		lines := must.OK(pgx.CollectRows(read, pgx.RowTo[string]))(t)
		plan, indexes := strings.Join(lines, "\n"), 0
		for _, line := range lines {
			var n int
			if _, found, ok := strings.Cut(line, "actual rows="); found != "" && ok {
				must.OK(fmt.Sscan(found, &n))(t)
			}
			if strings.Contains(line, "Index") && strings.Contains(line, "Scan") && strings.Contains(line, "_expires ") {
				indexes++
			}
			if strings.Contains(line, "Sort") || strings.Contains(line, "Seq Scan on pglimit_") && !strings.Contains(line, "_lease") && !strings.Contains(line, "_sweep") || n > most {
				t.Errorf("analyzed %v: %s", analyze, strings.TrimSpace(line))
			}
		}
		if indexes != 2*8+3 {
			t.Errorf("%d scans of the indexes of expiries, want 19:\n%s", indexes, plan)
		}
		must.Succeed(t, tx.Rollback(t.Context()))
	}
	if s := readState(t, pool); s.DueRows != 6*rows+rows/2 || s.ExpiredReservations != rows/2 {
		t.Errorf("%+v", s)
	}
}

// TestStatusBound: counts stop at the bound.
func TestStatusBound(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", janitor.StateBound-1, 0)
	testworld.InsertRows(t, pool, "pglimit_leaky_bucket", "p", 5, 0)
	if s := readState(t, pool); s.DueRows != janitor.StateBound {
		t.Errorf("%d due rows", s.DueRows)
	}
}

// TestStatusEndsWithItsContext: ReadState returns when its context ends.
func TestStatusEndsWithItsContext(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		must.OK(tx.Exec(t.Context(), `LOCK TABLE pglimit_token_bucket`))(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { _, err := statusOver(ctx, over); ended <- err }()
		testworld.AwaitBlocked(t, pool)
		cancel()
		if err := testworld.Receive(t, ended, "ReadState"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
