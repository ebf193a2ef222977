package functions

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// ask calls a function and fails the test on an error.
func ask(t testing.TB, q testworld.Querier, p limiter.Policy, op, key string, cost float64) limiter.Result {
	t.Helper()
	r, err := (&testworld.Functions{Q: q}).Call(context.Background(), op, p, key, cost)
	if err != nil {
		t.Fatalf("%s on %s: %v", op, p.Algorithm, err)
	}
	return r
}

// TestFunctionsRollBackWithTheCaller: a function's effect ends with the transaction, and a
// conflict is PostgreSQL's own error.
func TestFunctionsRollBackWithTheCaller(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.FunctionsPool(t)
	for _, p := range testworld.Variants(10, 1000*time.Hour) {
		p.BlockFor = time.Hour
		ask(t, pool, p, "allow", "k", 4)
		for op, cost := range map[string]float64{"allow": 3, "allow_up_to": 9, "charge": 3, "block": 60, "reset": 0, "refund": 2} {
			if op == "refund" && p.Algorithm == limiter.LeakyBucketQueue {
				continue
			}
			tx := testworld.Begin(t, pool, pgx.TxOptions{})
			ask(t, tx, p, op, "k", cost)
			if inside := ask(t, tx, p, "check", "k", 0); inside.Allowed && testworld.Near(inside.Level, 4) {
				t.Errorf("%s: %s has no effect inside the transaction: %+v", testworld.Variant(p), op, inside)
			}
			must.Succeed(t, tx.Rollback(ctx))
			if r := ask(t, pool, p, "check", "k", 0); !r.Allowed || !testworld.Near(r.Level, 4) {
				t.Errorf("%s: %s left after the rollback: %+v", testworld.Variant(p), op, r)
			}
		}
		tx := testworld.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		ask(t, tx, p, "check", "k", 0) // takes the snapshot
		ask(t, pool, p, "allow", "k", 1)
		_, err := (&testworld.Functions{Q: tx}).AllowN(ctx, p, "k", 1)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "40001" {
			t.Errorf("%s: a concurrent change gave %v, want 40001", testworld.Variant(p), err)
		}
		_ = tx.Rollback(ctx) // it has failed: this only returns its connection
	}
}

// TestFunctionsReservations: a reservation is rolled back with its transaction, and ends once.
// No more than the limit is ever reserved.
func TestFunctionsReservations(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.FunctionsPool(t)
	reserve := func(q testworld.Querier, key string, units float64) (hold *string) {
		rows, err := q.Query(ctx, `SELECT reservation FROM pglimit.reserve_with('fixed_window', 'h', $1, $2, limit_units => 30, period_s => 3600000, ttl_s => 60)`, key, units)
		if err == nil {
			hold, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[*string])
		}
		if err != nil {
			t.Error(err)
		}
		return hold
	}
	level := func(key string) float64 {
		t.Helper()
		return testworld.Value[float64](t, pool, `SELECT level FROM pglimit.check_with('fixed_window', 'h', $1, 0, 30, 3600000)`, key)
	}
	refuses := func(call string, hold *string, code, message string) {
		t.Helper()
		_, err := pool.Exec(ctx, `SELECT pglimit.`+call, hold)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != code || !strings.Contains(pg.Message, message) || pg.Hint == "" {
			t.Errorf("%s: %v", call, err)
		}
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	hold := reserve(tx, "tx", 30)
	if err := tx.Rollback(ctx); err != nil || hold == nil || level("tx") != 0 {
		t.Errorf("%v; a rolled-back reservation %v left %v units", err, hold, level("tx"))
	}
	refuses(`settle($1, 30)`, hold, "P0002", "there is no reservation")
	hold = reserve(pool, "k", 30)
	testworld.Exec(t, pool, `SELECT pglimit.settle($1, 7)`, hold)
	refuses(`settle($1, 8)`, hold, "55000", "was settled, with 7 of its 30 units")
	refuses(`cancel($1)`, hold, "55000", "was settled, with 7 of its 30 units")
	clients := testworld.Connect(t, pool.Config().ConnString(), testworld.Connections(32))
	var held atomic.Int64
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for {
				h := reserve(clients, "storm", 2)
				if h == nil || held.Add(2) > 300 {
					return
				}
				if rand.IntN(2) == 0 {
					if _, err := clients.Exec(ctx, `SELECT pglimit.cancel($1)`, h); err != nil {
						t.Error(err)
					}
					held.Add(-2)
				}
			}
		})
	}
	all.Wait()
	if held.Load() != 30 || level("storm") != 30 {
		t.Errorf("%d units are held, %v counted, want 30", held.Load(), level("storm"))
	}
}

// TestFunctionsLeaveTheCallersSettings: functions change neither how the caller's
// transaction commits nor how it waits for locks.
func TestFunctionsLeaveTheCallersSettings(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	for _, commit := range []string{"off", "local", "on"} {
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		settings := func() (s string) {
			must.Succeed(t, tx.QueryRow(context.Background(), `SELECT concat_ws(', ', current_setting('synchronous_commit'),
				current_setting('lock_timeout'), current_setting('search_path'))`).Scan(&s))
			return s
		}
		must.OK(tx.Exec(context.Background(), `SET LOCAL synchronous_commit = `+commit+`; SET LOCAL lock_timeout = 1234; SET LOCAL search_path = pg_catalog`))(t)
		before := settings()
		for _, p := range testworld.Variants(10, time.Hour) {
			for _, op := range []string{"allow", "allow_up_to", "check", "charge", "block", "unblock", "reset"} {
				ask(t, tx, p, op, "k", 1)
			}
		}
		if after := settings(); after != before {
			t.Errorf("settings were %s, and are %s", before, after)
		}
		must.Succeed(t, tx.Rollback(context.Background()))
	}
}

// TestFunctionsCheckReadOnly: check works in a read-only transaction.
func TestFunctionsCheckReadOnly(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	for _, p := range testworld.Variants(10, time.Hour) {
		tx := testworld.Begin(t, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if r := ask(t, tx, p, "check", "k", 3); !r.Allowed || r.Granted != 3 {
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
		if r := ask(t, tx, p, "allow", "k", 11); r.Allowed || r.RetryAfter != limiter.Never { // above the burst: writes nothing
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
		ask(t, pool, p, "allow", "full", 10)
		if r := ask(t, tx, p, "check", "full", 1); r.Allowed || r.Reason != limiter.ReasonLimit { // looks for no expired reservations
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
		if err := tx.Commit(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestFunctionsByTheDatabasesClock: without now, times count from the clock of the
// decision, as the library's do, also after a wait for the row's lock.
func TestFunctionsByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.FunctionsPool(t)
	p := limiter.Policy{Name: "clock", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	ends := testworld.Value[time.Time](t, pool, `SELECT clock_timestamp() + interval '1 hour'`)
	endsAt := func(q testworld.Querier) (s float64) {
		rows, err := q.Query(ctx, `SELECT reset_after_s FROM pglimit.fixed_window('clock', 'given', limit_units => 10, ends_at => $1)`, ends)
		if err == nil {
			s, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[float64])
		}
		if err != nil {
			t.Error(err)
		}
		return s
	}
	for key, call := range map[string]func(testworld.Querier) float64{
		"k":     func(q testworld.Querier) float64 { return ask(t, q, p, "allow", "k", 1).ResetAfter.Seconds() },
		"given": endsAt,
	} {
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		call(tx) // locks the row
		after := make(chan float64, 1)
		go func() { after <- call(pool) }()
		testworld.AwaitBlocked(t, pool)
		// The clock of the transaction that had locked the row is later: the row's time
		// moves forward.
		call(tx)
		must.Succeed(t, tx.Commit(ctx))
		got := testworld.Receive(t, after, "the answer")
		us := testworld.Value[int64](t, pool, `SELECT ends_at_us - updated_at_us FROM pglimit_fixed_window WHERE key = $1`, key)
		if got != testworld.Seconds(&got).Seconds() || time.Duration(us)*time.Microsecond != testworld.Seconds(&got) {
			t.Errorf("%s: reset_after_s is %v, and by the row's clock %v µs", key, got, us)
		}
	}
}

// TestFunctionsReadTheClockAtEachCall: the clock goes on between the calls of one
// statement, so that a request denied in a DO block is granted there later.
func TestFunctionsReadTheClockAtEachCall(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	for _, wait := range []string{
		`PERFORM pglimit.token_bucket('clock', 'taken', limit_units => 20, period_s => 1, burst => 1);
		 WHILE NOT (pglimit.token_bucket('clock', 'taken', limit_units => 20, period_s => 1, burst => 1)).allowed LOOP`,
		`PERFORM pglimit.token_bucket('clock', 'checked', limit_units => 20, period_s => 1, burst => 1);
		 WHILE NOT (pglimit.check_with('token_bucket', 'clock', 'checked', 1, 20, 1, 1)).allowed LOOP`,
		`PERFORM pglimit.block_with('token_bucket', 'clock', 'blocked', 0.05);
		 PERFORM pglimit.block_with('token_bucket', 'clock', 'blocked', 0.05);
		 WHILE NOT (pglimit.token_bucket('clock', 'blocked', limit_units => 20, period_s => 1, burst => 1)).allowed LOOP`,
	} {
		testworld.Exec(t, pool, `DO $$ DECLARE began timestamptz := clock_timestamp();
			BEGIN
				`+wait+`
					IF clock_timestamp() > began + interval '20 s' THEN
						RAISE 'still denied';
					END IF;
				END LOOP;
			END $$`)
	}
}
