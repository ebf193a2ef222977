package denials

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

const (
	ttl   = time.Second
	ttlUs = int64(ttl / time.Microsecond)
)

// cached is two processes, each with a separate pool and cache, and a third without a
// cache. All use one clock.
type cached struct {
	pool                     *pgxpool.Pool // of the first process
	clock                    *conformance.Clock
	here, elsewhere, without *limiter.Limiter
}

func newCached(t *testing.T) *cached {
	t.Helper()
	url := testworld.NewDatabase(t)
	c := &cached{pool: testworld.Connect(t, url), clock: new(conformance.Clock)}
	c.here = testworld.NewLimiter(t, c.pool, &limiter.Config{Now: c.clock.Now})
	c.elsewhere = testworld.NewLimiter(t, testworld.Connect(t, url), &limiter.Config{Now: c.clock.Now})
	c.without = testworld.NewLimiter(t, testworld.Connect(t, url), &limiter.Config{Now: c.clock.Now, DisableDenyCache: true})
	return c
}

// from sends a request in the first process, and checks the answer and its source.
func (c *cached) from(t *testing.T, source limiter.Source, allowed bool, p limiter.Policy, key string, cost float64) limiter.Result {
	t.Helper()
	r := testworld.Must(t)(c.here.AllowN(t.Context(), p, key, cost))
	if r.Source != source || r.Allowed != allowed {
		t.Errorf("%s, key %s, cost %v: got %+v, want allowed %v from %s", testworld.Variant(p), key, cost, r, allowed, source)
	}
	return r
}

// used uses the key up at time 0, and has a denial remembered.
func (c *cached) used(t *testing.T, p limiter.Policy, key string) {
	t.Helper()
	c.clock.Set(0)
	testworld.Must(t)(c.here.Charge(t.Context(), p, key, 10))
	c.from(t, limiter.SourceDatabase, false, p, key, 1)
	c.from(t, limiter.SourceCache, false, p, key, 1)
}

// lifts are the verbs that end a denial, and the room they leave for the next request.
func lifts(p limiter.Policy) map[string]func(context.Context, *limiter.Limiter, string) error {
	all := map[string]func(context.Context, *limiter.Limiter, string) error{
		"reset": func(ctx context.Context, l *limiter.Limiter, key string) error { return l.Reset(ctx, p, key) },
	}
	if p.Algorithm != limiter.LeakyBucketQueue {
		all["refund"] = func(ctx context.Context, l *limiter.Limiter, key string) error {
			_, err := l.Refund(ctx, p, key, 5)
			return err
		}
	}
	return all
}

// TestDenyCacheLifted: what another process gives back is seen one TTL after the denied
// request was sent, to the microsecond. What this process gives back is seen at once.
func TestDenyCacheLifted(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	ctx := t.Context()
	for _, p := range testworld.Variants(10, 1000*time.Hour) {
		for verb, lift := range lifts(p) {
			c.used(t, p, verb)
			must.Succeed(t, lift(ctx, c.elsewhere, verb))
			c.clock.Set(ttlUs - 1)
			c.from(t, limiter.SourceCache, false, p, verb, 1)
			c.clock.Set(ttlUs)
			c.from(t, limiter.SourceDatabase, true, p, verb, 1)

			own := "own " + verb
			c.used(t, p, own)
			must.Succeed(t, lift(ctx, c.here, own))
			c.from(t, limiter.SourceDatabase, true, p, own, 1)
		}

		c.clock.Set(0)
		for key, by := range map[string]*limiter.Limiter{"unblocked elsewhere": c.elsewhere, "unblocked here": c.here} {
			must.Succeed(t, by.Block(ctx, p, key, time.Hour))
			c.from(t, limiter.SourceDatabase, false, p, key, 1)
			if r := c.from(t, limiter.SourceCache, false, p, key, 1); r.Reason != limiter.ReasonBlocked || r.RetryAfter != time.Hour {
				t.Errorf("%s: %+v", testworld.Variant(p), r)
			}
			must.Succeed(t, by.Unblock(ctx, p, key))
		}
		c.from(t, limiter.SourceDatabase, true, p, "unblocked here", 1)
		c.clock.Set(ttlUs - 1)
		c.from(t, limiter.SourceCache, false, p, "unblocked elsewhere", 1)
		c.clock.Set(ttlUs)
		c.from(t, limiter.SourceDatabase, true, p, "unblocked elsewhere", 1)
	}
}

// TestDenyCacheLiftedInATransaction: verbs in a transaction of this process also empty the
// key, and so does a verb that returned an error.
func TestDenyCacheLiftedInATransaction(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	ctx := t.Context()
	p := limiter.Policy{Name: "tx", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	for verb, lift := range map[string]func(*limiter.Tx) error{
		"reset":   func(tx *limiter.Tx) error { return tx.Reset(ctx, p, "reset") },
		"refund":  func(tx *limiter.Tx) error { _, err := tx.Refund(ctx, p, "refund", 5); return err },
		"unblock": func(tx *limiter.Tx) error { return tx.Unblock(ctx, p, "unblock") },
	} {
		if verb == "unblock" {
			testworld.Must(t)(c.here.Allow(ctx, p, verb))
			must.Succeed(t, c.elsewhere.Block(ctx, p, verb, time.Hour))
			c.from(t, limiter.SourceDatabase, false, p, verb, 1)
		} else {
			c.used(t, p, verb)
		}
		tx := testworld.Begin(t, c.pool, pgx.TxOptions{})
		must.Succeed(t, lift(c.here.InTx(tx)))
		must.Succeed(t, tx.Commit(ctx))
		c.from(t, limiter.SourceDatabase, true, p, verb, 1)
	}

	// A verb that fails may still have done its work.
	for verb, lift := range lifts(p) {
		key := verb + " that fails"
		c.used(t, p, key)
		must.Succeed(t, lift(ctx, c.elsewhere, key))
		testworld.Exec(t, c.pool, "ALTER TABLE pglimit_token_bucket RENAME TO away")
		if err := lift(ctx, c.here, key); !errors.Is(err, limiter.ErrNotMigrated) {
			t.Errorf("%s: got %v", key, err)
		}
		testworld.Exec(t, c.pool, "ALTER TABLE away RENAME TO pglimit_token_bucket")
		c.from(t, limiter.SourceDatabase, true, p, key, 1)
	}
}

// TestDenyCacheLiftedByACancelledWait: the place that a Wait gives back is free for the
// next request.
func TestDenyCacheLiftedByACancelledWait(t *testing.T) {
	t.Parallel()
	l := testworld.NewLimiter(t, testworld.NewPool(t), &limiter.Config{DenyCacheTTL: time.Hour})
	p := limiter.Policy{Name: "queue", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 4}
	testworld.Must(t)(l.AllowN(t.Context(), p, "k", 2))
	ctx, stop := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- l.Wait(ctx, p, "k", 2) }()
	testworld.Eventually(t, "the Wait is in the queue", func(ctx context.Context) (bool, error) {
		r, err := l.Check(ctx, p, "k", 0)
		return r.Level > 3, err
	})
	for _, want := range []limiter.Source{limiter.SourceDatabase, limiter.SourceCache} {
		if r := testworld.Must(t)(l.AllowN(t.Context(), p, "k", 2)); r.Allowed || r.Source != want {
			t.Errorf("%+v, want a denial from %s", r, want)
		}
	}
	stop()
	<-gone
	testworld.Eventually(t, "the place is there", func(ctx context.Context) (bool, error) {
		r, err := l.AllowN(ctx, p, "k", 2)
		return r.Allowed, err
	})
}

// TestDenyCacheByCost: equal and larger requests are answered, with their own RetryAfter.
// Smaller ones, other plans and later moments are not.
func TestDenyCacheByCost(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	ctx := t.Context()
	for _, p := range testworld.Variants(10, 1000*time.Hour) {
		c.clock.Set(0)
		testworld.Must(t)(c.here.AllowN(ctx, p, "k", 7))
		denied := c.from(t, limiter.SourceDatabase, false, p, "k", 5)
		c.clock.Set(1000)
		again := c.from(t, limiter.SourceCache, false, p, "k", 5)
		want := denied
		want.Source = limiter.SourceCache
		want.At = want.At.Add(time.Millisecond)
		want.RetryAfter -= time.Millisecond
		want.ResetAfter -= time.Millisecond
		if again != want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", testworld.Variant(p), again, want)
		}

		for _, cost := range []float64{5.5, 10, 10.5, 1e6, 1 << 53} {
			if p.Algorithm == limiter.SlidingWindowLog {
				r := c.from(t, limiter.SourceDatabase, false, p, "k", cost) // and is itself remembered
				if (r.RetryAfter == limiter.Never) != (cost > 10) {
					t.Errorf("%s: %+v", testworld.Variant(p), r)
				}
				c.from(t, limiter.SourceDatabase, false, p, "k", 5)
				continue
			}
			r := c.from(t, limiter.SourceCache, false, p, "k", cost)
			check := testworld.Must(t)(c.without.Check(ctx, p, "k", cost))
			if r.RetryAfter != check.RetryAfter || r.Reason != check.Reason {
				t.Errorf("%s, cost %v: %+v, but the database says %+v", testworld.Variant(p), cost, r, check)
			}
		}
		plan := p
		plan.Limit = 20
		if r := testworld.Must(t)(c.here.AllowN(ctx, plan, "k", 5)); !r.Allowed {
			t.Errorf("%s, another plan: %+v", testworld.Variant(p), r)
		}

		// A clock that was set back is before the denial.
		testworld.Must(t)(c.here.Charge(ctx, p, "back", 10))
		c.from(t, limiter.SourceDatabase, false, p, "back", 1)
		c.clock.Set(999)
		c.from(t, limiter.SourceDatabase, false, p, "back", 1)
		c.clock.Set(1000)
		c.from(t, limiter.SourceCache, false, p, "back", 1)

		// A smaller request may fit.
		testworld.Must(t)(c.here.AllowN(ctx, p, "smaller", 7))
		c.from(t, limiter.SourceDatabase, false, p, "smaller", 5)
		c.from(t, limiter.SourceDatabase, true, p, "smaller", 2)
		c.from(t, limiter.SourceDatabase, false, p, "smaller", 2)
		c.from(t, limiter.SourceCache, false, p, "smaller", 2)
	}
}

// TestDenyCacheInFlight: a denial whose answer is on its way during a reset of the key is
// not remembered.
func TestDenyCacheInFlight(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testworld.NewDatabase(t)
	var next atomic.Bool
	arrived, release := make(chan struct{}), make(chan struct{})
	hold := &testworld.Trace{After: func(string, error) { // delays the answer to the next statement
		if next.Swap(false) {
			arrived <- struct{}{}
			<-release
		}
	}}
	l := testworld.NewLimiter(t, testworld.Connect(t, url, hold.On), &limiter.Config{DisableTimeout: true, DenyCacheTTL: time.Hour})
	other := testworld.NewLimiter(t, testworld.Connect(t, url), nil)
	for _, p := range testworld.Variants(1, 1000*time.Hour) {
		for verb, lift := range lifts(p) {
			testworld.Must(t)(other.Charge(ctx, p, verb, 1))
			next.Store(true)
			answer := testworld.Request(ctx, l, p.Request(verb, 1))
			<-arrived
			must.Succeed(t, lift(ctx, l, verb))
			release <- struct{}{}
			if r := testworld.ResultOf(t, "the denial", answer); r.Allowed {
				t.Errorf("%s, %s: %+v", testworld.Variant(p), verb, r)
			}
			if r := testworld.Must(t)(l.Allow(ctx, p, verb)); !r.Allowed {
				t.Errorf("%s: a denial from before the %s was remembered: %+v", testworld.Variant(p), verb, r)
			}
		}
	}
}

// TestDenyCacheKeepsNoCalendar: what another process gives back is visible at once.
func TestDenyCacheKeepsNoCalendar(t *testing.T) {
	t.Parallel()
	c := newCached(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Month}
	testworld.Must(t)(c.here.AllowN(t.Context(), p, "k", 10))
	for range 3 {
		c.from(t, limiter.SourceDatabase, false, p, "k", 1)
	}
	testworld.Must(t)(c.elsewhere.Refund(t.Context(), p, "k", 1))
	c.from(t, limiter.SourceDatabase, true, p, "k", 1)
}
