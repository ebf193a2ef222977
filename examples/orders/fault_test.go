package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

// fault ends the session that is about to send a certain statement, once.
type fault struct {
	t         *testing.T
	on        string // how the statement begins
	committed bool   // the server had committed, and only its answer was lost
	from      *shop
	done      atomic.Bool
}

func (f *fault) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	f.strike(ctx, conn.PgConn(), data.SQL)
	return ctx
}

func (f *fault) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		f.strike(ctx, conn.PgConn(), q.SQL)
	}
	return ctx
}

func (f *fault) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (f *fault) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (f *fault) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (f *fault) strike(ctx context.Context, conn *pgconn.PgConn, sql string) {
	if !strings.HasPrefix(sql, f.on) || !f.done.CompareAndSwap(false, true) {
		return
	}
	if f.committed {
		if _, err := conn.Exec(ctx, "commit").ReadAll(); err != nil {
			f.t.Error(err)
		}
	}
	f.from.exec(f.t, `SELECT pg_terminate_backend($1)`, conn.PID())
	eventually(f.t, "the session has ended", func() bool {
		return one[int](f.t, f.from, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, conn.PID()) == 0
	})
}

// TestCrash ends the session at each step. Before the commit neither the order nor its
// spend is left; after it both are. The order, placed again, is there once.
func TestCrash(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		on        string
		committed bool
	}{
		"before the order":                 {on: "INSERT INTO orders"},
		"between the order and the spend":  {on: "-- name: "}, // how the limiter's statements begin
		"between the spend and the commit": {on: "commit"},
		"after the commit":                 {on: "commit", committed: true},
	} {
		for _, o := range []Order{
			{Account: "alice", Number: "7", Cents: 60_00},
			{Account: "bob", Number: "7", Company: "initech", Cents: 60_00},
		} {
			t.Run(name+" of "+o.Account, func(t *testing.T) {
				t.Parallel()
				url := testdb.Migrated.New(t)
				other := newShop(t, url, march)
				strike := &fault{t: t, on: f.on, committed: f.committed, from: other}
				s := newShop(t, url, march, func(c *pgxpool.Config) { c.ConnConfig.Tracer = strike })

				if err := s.place(t.Context(), o); err == nil || !strike.done.Load() {
					t.Errorf("the session was not ended: %v", err)
				}
				left := 0.
				if f.committed {
					left = 60_00
				}
				both := func(cents float64) {
					t.Helper()
					other.want(t, accountBudget, o.Account, cents)
					if o.Company != "" {
						other.want(t, companyBudget, o.Company, cents)
					}
				}
				both(left)
				for range 2 { // it would be 180.00 of 100.00
					if err := s.place(t.Context(), o); err != nil {
						t.Errorf("placed again: %v", err)
					}
					both(60_00)
				}
			})
		}
	}
}

// TestConflictIsRunAgain: under repeatable read a spend cannot build on what another
// transaction has committed since, and returns ErrRetryTx.
func TestConflictIsRunAgain(t *testing.T) {
	t.Parallel()
	for _, o := range []Order{
		{Account: "alice", Number: "1", Cents: 30_00},
		{Account: "alice", Number: "1", Company: "initech", Cents: 30_00},
	} {
		url := testdb.Migrated.New(t)
		s := newShop(t, url, march, isolation("repeatable read"))
		other := newShop(t, url, march)
		if err := other.place(t.Context(), Order{Account: "alice", Number: "other 1", Cents: 5_00}); err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		err := other.inTx(t.Context(), func(tx pgx.Tx) error {
			if _, err := other.limits.InTx(tx).AllowN(t.Context(), accountBudget, "alice", 10_00); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), `INSERT INTO orders VALUES ('alice', 'other 2', '', 1000)`); err != nil {
				return err
			}
			go func() { first <- s.place(t.Context(), o) }()
			eventually(t, "the order waits for the budget", func() bool {
				return one[int](t, other, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-first; err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		other.want(t, accountBudget, "alice", 45_00)
	}
}

// TestConflictsWithoutEndAreTold: after five tries the error is returned.
func TestConflictsWithoutEndAreTold(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.Migrated.New(t), march)
	runs := 0
	err := s.inTx(t.Context(), func(pgx.Tx) error {
		runs++
		return limiter.ErrRetryTx
	})
	if runs != tries || !retryable(err) {
		t.Errorf("%d tries, %v", runs, err)
	}
}
