package wait

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var (
	lane  = limiter.Policy{Name: "lane", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 4}
	quick = limiter.Policy{Name: "quick", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 4}
)

// onBoth runs a test on a limiter in memory and on one of a database.
func onBoth(t *testing.T, f func(t *testing.T, l *limiter.Limiter)) {
	t.Parallel()
	pool := testworld.NewPool(t)
	t.Run("memory", func(t *testing.T) { t.Parallel(); f(t, limiter.NewMemory(nil)) })
	t.Run("database", func(t *testing.T) { t.Parallel(); f(t, testworld.NewLimiter(t, pool, nil)) })
}

// queued waits until a queue holds this many units for a key.
func queued(t *testing.T, l *limiter.Limiter, p limiter.Policy, key string, units float64) {
	t.Helper()
	testworld.Eventually(t, fmt.Sprint(units, " units are in the queue"), func(ctx context.Context) (bool, error) {
		r, err := l.Check(ctx, p, key, 0)
		return testworld.Near(r.Level, units), err
	})
}

// TestWaitFull: a full queue denies at once.
func TestWaitFull(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		ctx := t.Context()
		var denied *limiter.DeniedError
		testworld.Must(t)(l.AllowN(ctx, lane, "full", 4))
		if err := l.Wait(ctx, lane, "full", 1); !errors.As(err, &denied) || denied.Result.Reason != limiter.ReasonLimit {
			t.Errorf("full: got %v", err)
		}
		if err := l.Wait(ctx, lane, "full", 5); !errors.As(err, &denied) || denied.Result.RetryAfter != limiter.Never {
			t.Errorf("above the burst: got %v", err)
		}

		if r, err := l.DoWait(ctx, lane.Request("full", 1)); err != nil || r.Allowed || r.Delay != 0 || !testworld.Near(r.Level, 4) || r.RetryAfter < 999*time.Hour {
			t.Errorf("full: DoWait gave %+v, %v", r, err)
		}
	})
}

// TestWaitLate: a turn beyond the deadline is denied at once and consumes nothing.
func TestWaitLate(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		ctx := t.Context()
		var denied *limiter.DeniedError
		testworld.Must(t)(l.Allow(ctx, lane, "late"))
		soon, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := l.Wait(soon, lane, "late", 1); !errors.As(err, &denied) || denied.Result.RetryAfter < 999*time.Hour || denied.Result.RetryAfter > 1000*time.Hour {
			t.Errorf("late: got %v", err)
		}
		if got := testworld.Level(t, l, lane, "late"); !testworld.Near(got, 1) {
			t.Errorf("a Wait that could not come in time left a level of %v", got)
		}
	})
}

// TestWaitCancelled: a cancelled place goes back, unless another request has queued behind it.
func TestWaitCancelled(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		ctx := t.Context()
		// The first place is free at once; a cancelled one goes back.
		if r, err := l.DoWait(ctx, lane.Request("cancelled", 1)); err != nil || !r.Allowed || r.Granted != 1 || r.Delay != 0 {
			t.Errorf("the first place: DoWait gave %+v, %v", r, err)
		}
		waiting, stop := context.WithCancel(ctx)
		gone := make(chan error, 1)
		go func() { gone <- l.Wait(waiting, lane, "cancelled", 2) }()
		queued(t, l, lane, "cancelled", 3)
		stop()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got %v", err)
		}
		queued(t, l, lane, "cancelled", 1)

		// Once another request has queued behind it, the place stays taken.
		waiting, stop = context.WithCancel(ctx)
		go func() { gone <- l.Wait(waiting, lane, "cancelled", 2) }()
		queued(t, l, lane, "cancelled", 3)
		testworld.Must(t)(l.Allow(ctx, lane, "cancelled"))
		stop()
		<-gone
		if got := testworld.Level(t, l, lane, "cancelled"); !testworld.Near(got, 4) {
			t.Errorf("a cancelled Wait with another behind it left a level of %v", got)
		}
	})
}

// TestWaitTurn: a turn comes, and does not for a blocked key.
func TestWaitTurn(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		ctx := t.Context()
		var denied *limiter.DeniedError
		for range 2 {
			if err := l.Wait(ctx, quick, "k", 1); err != nil {
				t.Error(err)
			}
			queuedFrom := time.Now()
			if r, err := l.DoWait(ctx, quick.Request("k", 1)); err != nil || !r.Allowed || time.Since(queuedFrom) < r.Delay {
				t.Errorf("a turn: DoWait gave %+v, %v", r, err)
			}
		}
		must.Succeed(t, l.Block(ctx, quick, "k", time.Hour))
		if err := l.Wait(ctx, quick, "k", 1); !errors.As(err, &denied) || denied.Result.Reason != limiter.ReasonBlocked {
			t.Errorf("blocked: got %v", err)
		}
	})
}

// TestWaitRefuses: only a queue has turns, and an IdempotencyKey is refused.
func TestWaitRefuses(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		ctx := t.Context()
		bucket := quick
		bucket.Algorithm = limiter.TokenBucket
		again := quick.Request("k", 1)
		again.IdempotencyKey = "order 1"
		for _, request := range []limiter.Request{bucket.Request("k", 1), again} {
			if r, err := l.DoWait(ctx, request); !errors.Is(err, limiter.ErrUnsupported) || r.Allowed {
				t.Errorf("%+v: DoWait gave %+v, %v", request, r, err)
			}
		}
	})
}

// TestWaitCancelledInFlight cancels a Wait whose statement is waiting for the row. It
// returns while the statement still waits, and what that takes later goes back, at the
// latest when the limiter has closed.
func TestWaitCancelledInFlight(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	other := testworld.NewLimiter(t, pool, nil)
	testworld.Must(t)(other.Allow(t.Context(), lane, "k"))
	const ticket = "SELECT ticket FROM pglimit_leaky_bucket_queue"
	before := testworld.Value[int64](t, pool, ticket)

	l := testworld.NewLimiter(t, pool, nil)
	release := cancelInFlight(t, pool, l)
	var released atomic.Bool
	closed := make(chan bool, 1)
	go func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		closed <- released.Load()
	}()
	for { // a Close that does not wait would return
		if _, err := l.Check(t.Context(), lane, "k", 0); errors.Is(err, limiter.ErrClosed) {
			break
		}
	}
	testworld.Value[int64](t, pool, ticket)
	released.Store(true)
	release()
	if !<-closed {
		t.Error("Close returned while the statement was in flight")
	}
	if got := testworld.Must(t)(other.Check(t.Context(), lane, "k", 0)).Level; !testworld.Near(got, 1) {
		t.Errorf("the cancelled Wait left a level of %v", got)
	}
	if after := testworld.Value[int64](t, pool, ticket); after <= before {
		t.Error("no place was taken, and none could go back")
	}
}

// TestWaitCancelledWithoutTimeout: the work that a cancelled Wait leaves, while another
// transaction has locked the row, ends after a bounded time.
func TestWaitCancelledWithoutTimeout(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	forever := limiter.Config{DisableTimeout: true}
	testworld.Must(t)(testworld.NewLimiter(t, pool, nil).Allow(t.Context(), lane, "k"))
	t.Run("in flight", func(t *testing.T) {
		if testworld.Citus() {
			return // distributed tables have no triggers
		}
		l := testworld.NewLimiter(t, pool, &forever)
		release := cancelInFlight(t, pool, l)
		if err := l.Close(); err != nil { // otherwise it hangs here
			t.Error(err)
		}
		release()
	})
	t.Run("asleep", func(t *testing.T) {
		answered := make(chan struct{}, 1)
		forever.Observe = func(context.Context, limiter.Observation) { answered <- struct{}{} }
		l := testworld.NewLimiter(t, pool, &forever)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- l.Wait(ctx, lane, "k", 1) }()
		<-answered
		release := hold(t, pool, "pglimit_leaky_bucket_queue")
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) { // or here
			t.Errorf("got %v", err)
		}
		release()
	})
}

// cancelInFlight cancels a Wait for 2 units on lane and "k" while its statement runs, which
// it does until release.
func cancelInFlight(t *testing.T, pool *pgxpool.Pool, l *limiter.Limiter) (release func()) {
	t.Helper()
	testworld.Exec(t, pool, `CREATE TABLE gate AS SELECT false AS open`)
	testworld.Exec(t, pool, `CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		WHILE NOT (SELECT open FROM gate) LOOP PERFORM pg_sleep(0.002); END LOOP;
		RETURN NEW;
	END $$`)
	testworld.Exec(t, pool, `CREATE TRIGGER gate BEFORE INSERT ON pglimit_leaky_bucket_queue FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- l.Wait(ctx, lane, "k", 2) }()
	testworld.Eventually(t, "the statement runs", func(context.Context) (bool, error) {
		return testworld.Value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == 1, nil
	})
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	return func() { testworld.Exec(t, pool, "UPDATE gate SET open = true") }
}
