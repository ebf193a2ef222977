package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/pglimit/limiter"
)

// A load is callers of a limiter, each of which sends its next request when it has its
// answer. The first call that fails ends it.
type load struct {
	limiter *limiter.Limiter
	policy  limiter.Policy
	callers int
	// keys returns a caller's source of keys, which is called for each request on the
	// caller's goroutine.
	keys func(caller int) func() string
	// mustAllow makes a denial an error.
	mustAllow bool
}

// slowest is the upper bound of the histograms.
const slowest = time.Minute

// tally is what a load did during some time.
type tally struct {
	calls    *hdrhistogram.Histogram // durations in nanoseconds
	denied   int64
	duration time.Duration
}

func newTally() tally {
	return tally{calls: hdrhistogram.New(1, slowest.Nanoseconds(), 3)}
}

// add adds another tally.
func (t *tally) add(other tally) {
	t.calls.Merge(other.calls) // drops nothing: both have the same bounds
	t.denied += other.denied
	t.duration += other.duration
}

func (t *tally) decisions() int64 { return t.calls.TotalCount() }

// quantile returns the duration that percent of the calls did not exceed.
func (t *tally) quantile(percent float64) time.Duration {
	return time.Duration(t.calls.ValueAtPercentile(percent))
}

// perSecond is the number of decisions per second.
func (t *tally) perSecond() float64 { return float64(t.decisions()) / t.duration.Seconds() }

// running is a load in progress.
type running struct {
	load
	ctx     context.Context
	stopped atomic.Bool
	callers []*caller
	since   time.Time // the last collect
	wait    sync.WaitGroup

	once   sync.Once
	err    error
	failed chan struct{} // closed once err is set
}

// caller is one of them, with its figures since the last collect.
type caller struct {
	mu sync.Mutex
	tally
}

// start starts the callers.
func (l load) start(ctx context.Context) *running {
	r := &running{load: l, ctx: ctx, since: time.Now(), failed: make(chan struct{})}
	for i := range l.callers {
		c := &caller{tally: newTally()}
		r.callers = append(r.callers, c)
		key := l.keys(i)
		r.wait.Go(func() {
			for !r.stopped.Load() {
				if err := r.call(c, key()); err != nil {
					r.fail(err)
					return
				}
			}
		})
	}
	return r
}

func (r *running) call(c *caller, key string) error {
	start := time.Now()
	result, err := r.limiter.Allow(r.ctx, r.policy, key)
	took := time.Since(start)
	switch {
	case err != nil:
		return err
	case !result.Allowed && r.mustAllow:
		return fmt.Errorf("key %s was denied where nothing should be: %+v", key, result)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !result.Allowed {
		c.denied++
	}
	return c.calls.RecordValue(min(took, slowest).Nanoseconds())
}

// fail ends the load; the first error counts.
func (r *running) fail(err error) {
	r.once.Do(func() {
		r.err = err
		r.stopped.Store(true)
		close(r.failed)
	})
}

// until waits until a moment; if the load ends before it, that is an error.
func (r *running) until(t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.failed:
	case <-r.ctx.Done():
	}
	return r.failure()
}

// failure returns why the load ended early; if its context ended, that.
func (r *running) failure() error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	select {
	case <-r.failed:
		return r.err
	default:
		return nil
	}
}

// collect returns the figures since the last collect.
func (r *running) collect() tally {
	sum := newTally()
	for _, c := range r.callers {
		c.mu.Lock()
		sum.add(c.tally)
		c.calls.Reset()
		c.denied = 0
		c.mu.Unlock()
	}
	now := time.Now()
	sum.duration = now.Sub(r.since)
	r.since = now
	return sum
}

// stop ends the load between two calls of each caller, so that no statement is cut off. It
// returns the error if the load had failed before.
func (r *running) stop() error {
	r.stopped.Store(true)
	r.wait.Wait()
	return r.failure()
}

// run runs a whole load of a given length.
func (l load) run(ctx context.Context, length time.Duration) (tally, error) {
	r := l.start(ctx)
	err := r.until(r.since.Add(length))
	if late := r.stop(); err == nil {
		err = late
	}
	return r.collect(), err
}

// evenly draws keys of rows filled by fill, all equally likely.
func evenly(rows int64, seed uint64) func(int) func() string {
	return func(caller int) func() string {
		r := rand.New(rand.NewPCG(seed, uint64(caller)))
		return func() string { return rowKey(r.Int64N(rows)) }
	}
}

// zipf draws from n keys, popular ones more often: the k-th with a weight of k to the
// power of -s.
func zipf(keys int64, s float64, seed uint64) func(int) func() string {
	return func(caller int) func() string {
		z := rand.NewZipf(rand.New(rand.NewPCG(seed, uint64(caller))), s, 1, uint64(keys-1))
		return func() string { return scattered(z.Uint64()) }
	}
}

// fresh returns a key that was never returned before, to any caller.
func fresh() func(int) func() string {
	var n atomic.Uint64
	return func(int) func() string {
		return func() string { return scattered(n.Add(1)) }
	}
}

// scattered returns a distinct key for each number. Adjacent numbers get keys far apart in
// an index, as names and addresses are. (It is the finalizer of splitmix64, a bijection.)
func scattered(n uint64) string {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return "user-" + strconv.FormatUint(n^n>>31, 16)
}
