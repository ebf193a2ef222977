package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// slowest is the upper bound of the histograms.
const slowest = time.Minute

// traffic is callers of a limiter, which together send a number of requests per second.
type traffic struct {
	plan    plan
	limiter *limiter.Limiter
	pool    *pgxpool.Pool // of the application's own transactions
	clock   clock
	keys    *population
	watched []*watched

	began   time.Time
	stopped atomic.Bool
	callers []*caller
	wait    sync.WaitGroup
	cached  atomic.Int64 // requests that the process answered from memory

	once   sync.Once
	err    error
	failed chan struct{} // closed once err is set
}

// caller is one of them, with its durations since the last collect.
type caller struct {
	*traffic
	random *rand.Rand
	zipf   *rand.Zipf
	serial int
	// arrival reports whether this request may be a new key's.
	arrival bool

	mu    sync.Mutex
	calls *hdrhistogram.Histogram
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1000, slowest.Nanoseconds(), 2)
}

// start starts the callers.
func (t *traffic) start(ctx context.Context) {
	t.began, t.failed = time.Now(), make(chan struct{})
	for i := range callers {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		c := &caller{traffic: t, random: r, zipf: t.keys.weights(r), serial: i, calls: newHistogram()}
		t.callers = append(t.callers, c)
		t.wait.Go(func() { c.run(ctx, i) })
	}
}

// run sends a request at each of the caller's times. A caller that is late sends at once;
// what it is late by more than a second is left out.
func (c *caller) run(ctx context.Context, i int) {
	const most = time.Second
	every := time.Second * callers / time.Duration(c.plan.Rate)
	next := c.began.Add(every * time.Duration(i) / callers)
	for !c.stopped.Load() && ctx.Err() == nil {
		time.Sleep(time.Until(next))
		if err := c.request(ctx); err != nil {
			c.fail(err)
			return
		}
		next = next.Add(every)
		if late := time.Since(next); late > most {
			next = next.Add(late)
		}
	}
}

// request sends a new key's first request if one is due, else one of the mixture. On a
// machine that is too slow for the rate every second request is one of the mixture.
func (c *caller) request(ctx context.Context) error {
	c.arrival = !c.arrival
	if c.arrival {
		if n, ok := c.keys.arrive(c.plan.arrivals(time.Since(c.began))); ok {
			return c.allow(ctx, n, 1)
		}
	}
	const oneOf = 10
	if c.random.IntN(oneOf) == 0 {
		return c.watch(ctx, c.watched[c.random.IntN(len(c.watched))])
	}
	if n, ok := c.keys.draw(c.zipf); ok {
		return c.mixed(ctx, n)
	}
	return nil
}

// timed records how long a call took, unless this process answered it from memory.
func (c *caller) timed(call func() (limiter.Result, error)) (limiter.Result, error) {
	start := time.Now()
	r, err := call()
	took := time.Since(start)
	if err != nil {
		return r, err
	}
	if r.Source == limiter.SourceCache {
		c.cached.Add(1)
		return r, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return r, c.calls.RecordValue(min(took, slowest).Nanoseconds())
}

// fail ends the traffic; the first error counts.
func (t *traffic) fail(err error) {
	t.once.Do(func() {
		t.err = err
		t.stopped.Store(true)
		close(t.failed)
	})
}

// until waits until a moment; if the traffic ends before it, that is an error.
func (t *traffic) until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.failed:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return t.err
	}
}

// collect adds the durations since the last collect to a histogram.
func (t *traffic) collect(into *hdrhistogram.Histogram) {
	for _, c := range t.callers {
		c.mu.Lock()
		into.Merge(c.calls) // drops nothing: both have the same bounds
		c.calls.Reset()
		c.mu.Unlock()
	}
}

// stop ends the traffic between two requests of each caller.
func (t *traffic) stop() {
	t.stopped.Store(true)
	t.wait.Wait()
}
