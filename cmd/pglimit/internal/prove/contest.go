// Package contest lets many workers send requests for a few keys of one algorithm
// concurrently, and compares what was admitted with what the algorithm allows.
package contest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
	"golang.org/x/sync/errgroup"
)

// Client sends requests, such as over a pool of connections. It is safe for concurrent
// use.
type Client interface {
	verbs.Limiter
	// InTx calls do with the same methods in a transaction, and then commits or rolls
	// back.
	InTx(ctx context.Context, commit bool, do func(verbs.Limiter) error) error
}

// maxFailures in a row have the database as their reason, not killed clients.
const maxFailures = 10

// Contest is the contention on one algorithm. Create it with New, and call Contend
// once.
type Contest struct {
	algorithm    limiter.Algorithm
	clients      []Client
	holder       Client // locks rows in transactions
	workers      int
	groups       groups
	holding      holding
	mu           sync.Mutex
	tallies      tallies
	reservations map[subject]*reservations
	latencies    []time.Duration
	answered     int64
	rowsHeld     int64
	meanwhile    int64
	stalls       int64
}

// New returns a contest on an algorithm. run is the prefix of its policies' names.
func New(clients []Client, holder Client, workers int, a limiter.Algorithm, run string, lasts time.Duration) *Contest {
	return &Contest{
		algorithm: a, clients: clients, holder: holder, workers: workers, groups: newGroups(a, run, lasts),
		tallies: tallies{}, reservations: map[subject]*reservations{},
		holding: holding{most: holdMost, callers: make(chan struct{}, heldCallers(workers))},
	}
}

// Contend lets the workers send requests until lasts has passed, waits for the last
// answers, and then reads what is counted. It returns what was measured, also with an
// error. clock reads the database's clock.
func (c *Contest) Contend(ctx context.Context, lasts time.Duration, clock func(context.Context) (time.Time, error)) (Algorithm, error) {
	first, err := clock(ctx)
	if err != nil {
		return Algorithm{}, errors.Join(err, context.Cause(ctx))
	}
	start := time.Now()
	until := start.Add(lasts)
	all, working := errgroup.WithContext(ctx)
	all.Go(func() error { return c.hold(working, until) })
	for i := range c.workers {
		all.Go(func() error { return c.work(working, c.clients[i%len(c.clients)], until) })
	}
	err = all.Wait()
	took := time.Since(start)
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		return c.report(took, first, first), err
	}
	last, err := clock(ctx)
	if byOurs := first.Add(took); last.Before(byOurs) {
		last = byOurs // the database's clock was set back meanwhile
	}
	if err == nil {
		err = c.checkCounted(ctx)
	}
	return c.report(took, first, last), err
}

// worker sends requests, one after the other. It counts for itself.
type worker struct {
	contest   *Contest
	to        Client
	books     tallies
	latencies []time.Duration
	answered  int64
	left      []leftOpen // reservations, the oldest first
}

// work is one worker. It adds its counts to the contest at the end.
func (c *Contest) work(ctx context.Context, to Client, until time.Time) error {
	w := &worker{contest: c, to: to, books: tallies{}}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tallies.add(w.books)
		c.latencies = append(c.latencies, w.latencies...)
		c.answered += w.answered
	}()
	failures := 0
	for ctx.Err() == nil && (time.Now().Before(until) || !c.holding.over.Load()) {
		s, leave := c.pick()
		held := c.holding.begin(s.subject)
		how, err := w.act(ctx, s)
		leave()
		switch fateOf(err) {
		case answered:
			failures = 0
			held.answered(s.subject)
		case hopeless:
			return err
		case unknown:
			if how != left {
				failures++
			}
			if failures >= maxFailures {
				return fmt.Errorf("%d requests in a row failed, the last: %w", failures, err)
			}
		}
	}
	return nil
}

// act sends what the kind of key is for, and counts it.
func (w *worker) act(ctx context.Context, s request) (manner, error) {
	switch s.kind {
	case setsKind:
		return w.set(ctx, s)
	case reservedKind:
		return w.reserve(ctx, s)
	}
	return w.lone(ctx, s)
}

// pick chooses a worker's next request. The worker calls leave when it has its answer.
func (c *Contest) pick() (s request, leave func()) {
	if rand.IntN(c.groups.free()+1) == 0 {
		if leave, ok := c.holding.enter(); ok {
			if row := c.holding.now.Load(); row != nil {
				return row.request, leave
			}
			return c.groups.of(heldKind), leave
		}
	}
	return c.groups.pick(), func() {}
}

// fate is what became of a request.
type fate int

const (
	answered fate = iota
	undone        // the database reported that it was rolled back
	unknown       // it may be counted
	hopeless      // no retry can succeed
)

func fateOf(err error) fate {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, limiter.ErrRetryTx):
		return undone
	case Hopeless(err):
		return hopeless
	}
	return unknown
}

// Hopeless reports whether no retry can succeed after err.
func Hopeless(err error) bool {
	return errors.Is(err, limiter.ErrMisconfigured) || errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnsupported) || pooler.Lost(err)
}
