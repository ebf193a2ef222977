package wait

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// hourly makes requests to limits of which hardly anything leaks during a test.
func hourly(a limiter.Algorithm) limiter.Policy {
	return limiter.Policy{Name: "hourly-" + string(a)[:4], Algorithm: a, Limit: 4, Period: 4000 * time.Hour}
}

var turns, bucket, window = hourly(limiter.LeakyBucketQueue), hourly(limiter.TokenBucket), hourly(limiter.FixedWindow)

// all waits for a unit of a bucket, a queue and a window of the key free.
func all(ctx context.Context, l *limiter.Limiter) (limiter.Results, error) {
	return l.WaitAll(ctx, bucket.Request("free", 1), turns.Request("free", 1), window.Request("free", 1))
}

// levels expects the units that are counted for a key.
func levels(t *testing.T, l *limiter.Limiter, key string, want float64, policies ...limiter.Policy) {
	t.Helper()
	for _, p := range policies {
		if got := testworld.Level(t, l, p, key); !testworld.Near(got, want) {
			t.Errorf("%s: the level of %s is %v, want %v", key, p.Name, got, want)
		}
	}
}

// TestWaitAllNow: the first place in a queue is free at once, without a queue nothing waits, and a
// turn beyond the deadline denies all requests, at once.
func TestWaitAllNow(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		r, err := all(t.Context(), l)
		if err != nil || !r.Allowed || r.DeniedBy != -1 || len(r.PerRequest) != 3 || r.PerRequest[1].Delay != 0 {
			t.Errorf("free: %+v, %v", r, err)
		}
		if r, err := l.WaitAll(t.Context(), bucket.Request("free", 1), window.Request("free", 1)); err != nil || !r.Allowed {
			t.Errorf("without a queue: %+v, %v", r, err)
		}
		levels(t, l, "free", 2, bucket, window)
		levels(t, l, "free", 1, turns)
		soon, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		// A turn beyond the deadline denies all requests, at once.
		r, err = all(soon, l)
		if err != nil || r.Allowed || r.DeniedBy != 1 || !r.PerRequest[0].Allowed || !r.PerRequest[2].Allowed || r.PerRequest[1].RetryAfter < 998*time.Hour || r.PerRequest[1].RetryAfter > 999*time.Hour {
			t.Errorf("late: %+v, %v", r, err)
		}
		levels(t, l, "free", 2, bucket, window)
		levels(t, l, "free", 1, turns)
	})
}

// TestWaitAllQueues: two queues, and two requests of one, each have their own turn.
func TestWaitAllQueues(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		for i, want := range []struct {
			within time.Duration
			asks   []limiter.Request
			denied int // -1: all allowed
		}{
			{time.Hour, []limiter.Request{turns.Request("a", 1), turns.Request("b", 1)}, -1},
			{time.Hour, []limiter.Request{turns.Request("c", 1), turns.Request("b", 1)}, 1},
			{999 * time.Hour, []limiter.Request{turns.Request("d", 1), turns.Request("d", 1)}, 1},
			{time.Hour, []limiter.Request{turns.Request("d", 1), turns.Request("d", 2)}, 1},
			{time.Hour, []limiter.Request{turns.Request("d", 2), turns.Request("d", 1)}, 1},
			{time.Hour, []limiter.Request{turns.Request("d", 4)}, -1},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), want.within)
			r, err := l.WaitAll(ctx, want.asks...)
			if err != nil || r.Allowed != (want.denied < 0) || r.DeniedBy != want.denied {
				t.Errorf("%d: %+v, %v, want it to be denied by %d", i, r, err, want.denied)
			}
			for j, each := range r.PerRequest {
				if each.Allowed != (j != want.denied) {
					t.Errorf("%d: request %d: %+v", i, j, each)
				}
			}
			cancel()
		}
		levels(t, l, "c", 0, turns)
		levels(t, l, "d", 4, turns)
	})
}

// TestWaitAllCancelled: a caller that is cancelled while it sleeps leaves everything unchanged.
func TestWaitAllCancelled(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		testworld.MustAll(t)(all(t.Context(), l))
		testworld.MustAll(t)(l.WaitAll(t.Context(), bucket.Request("free", 1), window.Request("free", 1)))
		waiting, stop := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		wait := func() { _, err := all(waiting, l); gone <- err }
		go wait()
		queued(t, l, turns, "free", 2)
		levels(t, l, "free", 3, bucket, window)
		stop()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		queued(t, l, turns, "free", 1)
		testworld.Eventually(t, "the others went back", func(ctx context.Context) (bool, error) {
			a, err := l.Check(ctx, bucket, "free", 0)
			b, err2 := l.Check(ctx, window, "free", 0)
			return testworld.Near(a.Level, 2) && b.Level == 2, errors.Join(err, err2)
		})

		// A place with another request behind it stays taken; the others go back.
		waiting, stop = context.WithCancel(t.Context())
		go wait()
		queued(t, l, turns, "free", 2)
		testworld.Must(t)(l.Allow(t.Context(), turns, "free"))
		stop()
		<-gone
		testworld.Eventually(t, "the window's unit went back", func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, window, "free", 0)
			return r.Level == 2, err
		})
		levels(t, l, "free", 3, turns)
	})
}

// TestWaitAllLatest: the turn is the latest of all.
func TestWaitAllLatest(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		quicker := quick
		quicker.Name, quicker.Limit = "quicker", 1000
		for range 3 {
			since := time.Now()
			r, err := l.WaitAll(t.Context(), quicker.Request("k", 1), quick.Request("k", 1), quicker.Request("k", 1))
			if err != nil || !r.Allowed {
				t.Fatalf("%+v, %v", r, err)
			}
			for _, each := range r.PerRequest {
				if time.Since(since) < each.Delay {
					t.Errorf("left after %v: %+v", time.Since(since), r)
				}
			}
		}
	})
}

// TestWaitAllRefuses: no requests, and an IdempotencyKey, are refused.
func TestWaitAllRefuses(t *testing.T) {
	onBoth(t, func(t *testing.T, l *limiter.Limiter) {
		remembered := turns.Request("k", 1)
		remembered.IdempotencyKey = "order 1"
		for _, requests := range [][]limiter.Request{nil, {bucket.Request("k", 1), remembered}} {
			if r, err := l.WaitAll(t.Context(), requests...); !errors.Is(err, limiter.ErrInvalid) && !errors.Is(err, limiter.ErrUnsupported) || r.Allowed {
				t.Errorf("%+v: %+v, %v", requests, r, err)
			}
		}
	})
}

// TestWaitAllCancelledInFlight cancels a caller whose transaction waits for a row. It
// returns at once, and what is granted later goes back before the limiter closes.
func TestWaitAllCancelledInFlight(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	p := append(limitsBesideQueue(), hourly(limiter.LeakyBucketQueue))
	other := testworld.NewLimiter(t, pool, nil)
	var requests []limiter.Request
	for _, p := range p {
		requests = append(requests, p.Request("k", 1), p.Request("k", 1))
	}
	if r, err := other.AllowAll(t.Context(), requests...); err != nil || !r.Allowed {
		t.Fatalf("%+v, %v", r, err)
	}
	const took = "SELECT ticket FROM pglimit_leaky_bucket_queue"
	// Between two waits for a locked row no statement is in flight, and a request that is
	// cancelled then is not sent again.
	for range 20 {
		before := testworld.Value[int64](t, pool, took)
		cancelAllInFlight(t, pool, slices.Clone(requests))
		for _, p := range p {
			if got := testworld.Must(t)(other.Check(t.Context(), p, "k", 0)).Level; !testworld.Near(got, 2) {
				t.Errorf("%s: the level is %v", p.Name, got)
			}
		}
		if testworld.Value[int64](t, pool, took) > before {
			return
		}
	}
	t.Error("nothing was granted, and nothing could go back")
}

// cancelAllInFlight cancels a WaitAll while its statement waits for a row, and returns when
// nothing is in flight.
func cancelAllInFlight(t *testing.T, pool *pgxpool.Pool, requests []limiter.Request) {
	t.Helper()
	l := testworld.NewLimiter(t, pool, nil)
	release := hold(t, pool, "pglimit_leaky_bucket_queue")
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := l.WaitAll(ctx, requests...); gone <- err }()
	testworld.AwaitBlocked(t, pool)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	for i := range requests { // they are the caller's
		requests[i] = hourly(limiter.LeakyBucketQueue).Request("another", 1)
	}
	release()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// limitsBesideQueue returns one policy of each other algorithm.
func limitsBesideQueue() (all []limiter.Policy) {
	for _, a := range limiter.Algorithms() {
		if a != limiter.LeakyBucketQueue {
			p := hourly(a)
			p.Name = string(a)
			all = append(all, p)
		}
	}
	return slices.Clip(all)
}

// hold locks the rows of key "k" of a table until release.
func hold(t *testing.T, pool *pgxpool.Pool, table string) (release func()) {
	t.Helper()
	tx := must.OK(pool.Begin(t.Context()))(t)
	must.OK(tx.Exec(t.Context(), "SELECT FROM "+table+" WHERE key = 'k' FOR UPDATE"))(t)
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
