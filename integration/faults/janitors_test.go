package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// sweepWithClock sweeps, as a janitor in production does, in a program whose clock is that
// far ahead of the true time, until done is set. It returns what it removed.
//
// The clock is that of a synctest bubble. It stands still while the janitor waits for the
// database.
func sweepWithClock(t *testing.T, ahead time.Duration, address string, done *atomic.Bool) (removed int64) {
	begins := time.Now().Add(ahead).Round(0)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(begins)) // a bubble begins in the year 2000
		ctx := context.WithoutCancel(t.Context())
		pool, err := pgxpool.New(ctx, address)
		if err != nil {
			t.Error(err)
			return
		}
		defer pool.Close()
		j, err := janitor.New(pool, nil)
		if err != nil {
			t.Error(err)
			return
		}
		for !done.Load() {
			if _, err := j.Sweep(ctx); err != nil {
				t.Errorf("a sweep: %v", err)
			}
			// The lease is free now: the other janitor's turn.
			if _, err := pool.Exec(ctx, "SELECT pg_sleep(0.02)"); err != nil {
				t.Error(err)
			}
		}
		removed = j.Removed().Total()
	})
	return removed
}

// janitorFaults sweep while the load runs.
var janitorFaults = []fault{{name: "two janitors, an hour ahead and behind", do: sweepByWrongClocks}}

// sweepByWrongClocks has two janitors sweep as often as they can, in programs whose clocks
// are two hours apart. They must delete what is empty by the database's clock, and nothing
// else. The database records each row that is deleted.
//
// The load's tight limits are empty within seconds when they rest, and its budgets in a
// century. The keys of this fault have been empty for longer than the minute that a janitor
// leaves them, since they are used as of two minutes ago, or are empty in half an hour: by the
// janitor's clock that is ahead, they would be empty now.
func sweepByWrongClocks(ctx context.Context, t *testing.T, s *scene) {
	testworld.Exec(t, s.pool, recordDeletes)
	for _, a := range algorithm.Tables {
		testworld.Exec(t, s.pool, "CREATE TRIGGER deleted AFTER DELETE ON pglimit_"+string(a)+" FOR EACH ROW EXECUTE FUNCTION record_delete()")
	}
	var done atomic.Bool
	var removed [2]int64
	var janitors sync.WaitGroup
	for i, ahead := range []time.Duration{-time.Hour, time.Hour} {
		janitors.Go(func() { removed[i] = sweepWithClock(t, ahead, s.address, &done) })
	}
	defer janitors.Wait()
	defer done.Store(true)

	l := testworld.NewLimiter(t, s.pool, nil)
	ago := testworld.NewLimiter(t, s.pool, &limiter.Config{Now: func() time.Time { return time.Now().Add(-2 * time.Minute) }})
	short := everyAlgorithm("short", func(p *limiter.Policy) { p.Limit, p.Period = 1, 20*time.Millisecond })
	halfHour := everyAlgorithm("half-hour", func(p *limiter.Policy) { p.Limit, p.Period = 5, 30*time.Minute })
	granted := map[place]float64{}
	for n, began := 0, time.Now(); time.Since(began) < 8*time.Second; n++ {
		for i := range short {
			testworld.Must(t)(ago.Allow(ctx, short[i], fmt.Sprint("key-", n)))
			p, key := halfHour[i], fmt.Sprint("key-", n%20)
			granted[place{p.Name, key}] += testworld.Must(t)(l.AllowN(ctx, p, key, 1)).Granted
		}
	}
	done.Store(true)
	janitors.Wait()
	for i, n := range removed {
		if n == 0 {
			t.Errorf("janitor %d removed nothing: this says nothing", i)
		}
	}
	for at, units := range granted {
		if units > 5 {
			t.Errorf("%s of %s: %v units were granted within half an hour, want at most 5", at.key, at.policy, units)
		}
	}
	var still []string
	rows, err := s.pool.Query(ctx, "SELECT policy || ' ' || key FROM deleted WHERE NOT empty")
	if err == nil {
		still, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil || len(still) > 0 {
		t.Errorf("%d rows were deleted that still counted, such as %q; %v", len(still), still[:min(3, len(still))], err)
	}
}

// recordDeletes makes a function that records whether a row was empty when it was deleted,
// by the definitions of the algorithms.
const recordDeletes = `
CREATE TABLE deleted (policy text, key text, empty boolean);
CREATE FUNCTION record_delete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	row jsonb := to_jsonb(OLD);
	now_us float8 := extract(epoch FROM clock_timestamp()) * 1e6;
	since_us float8 := now_us - (row->>'updated_at_us')::float8;
	empty boolean;
BEGIN
	empty := CASE TG_TABLE_NAME
		WHEN 'pglimit_leaky_bucket' THEN (row->>'level')::float8 <= ceil(since_us / (row->>'tick_us')::float8) * (row->>'leak')::float8
		WHEN 'pglimit_fixed_window' THEN (row->>'ends_at_us')::float8 <= now_us
		WHEN 'pglimit_sliding_window_counter' THEN (row->>'ends_at_us')::float8 + (row->>'period_us')::float8 <= now_us OR (row->>'current')::float8 + (row->>'previous')::float8 = 0
		WHEN 'pglimit_sliding_window_log' THEN (SELECT coalesce(max(entry::float8), 0) FROM jsonb_array_elements_text(row->'entries') AS entry) + (row->>'keep_us')::float8 <= now_us
		ELSE (row->>'level')::float8 <= since_us * (row->>'leak')::float8
	END;
	INSERT INTO deleted VALUES (OLD.policy, OLD.key, empty);
	RETURN NULL;
END $$`
