// Package contest lets many workers send requests for a few keys of one algorithm
// concurrently, and compares what was admitted with what the algorithm allows.
package contest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/prove/bound"
	"github.com/pglimit/pglimit/limiter"
)

// Client sends requests, such as over a pool of connections. It is safe for concurrent
// use.
type Client interface {
	// Request sends a request without a transaction.
	Request(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error)
	// RequestInTx sends a request in a transaction, calls before, and then commits or
	// rolls back.
	RequestInTx(ctx context.Context, p limiter.Policy, key string, n float64, commit bool, before func()) (limiter.Result, error)
}

const (
	maxCost = 3

	// Of 1,000 requests, the number in transactions that roll back and that commit, and
	// the number from clients that disconnect within maxPatience.
	inTxAndBack, inTxAndKept, impatient = 80, 80, 5
	maxPatience                         = 3 * time.Millisecond

	// After maxFailures in a row, the reason is the database, not killed clients.
	maxFailures = 10
)

// Contest is the contention on one algorithm. Create it with New, and call Contend
// once.
type Contest struct {
	clients   []Client
	holder    Client // locks rows in transactions
	workers   int
	groups    groups
	holding   holding
	mu        sync.Mutex
	tallies   tallies
	latencies []time.Duration
	answered  int64
	rowsHeld  int64
	meanwhile int64
	stalls    int64
}

// New returns a contest on an algorithm. run is the prefix of its policies' names.
func New(clients []Client, holder Client, workers int, a limiter.Algorithm, run string, lasts time.Duration) *Contest {
	return &Contest{
		clients: clients, holder: holder, workers: workers, groups: newGroups(a, run, lasts), tallies: tallies{},
		holding: holding{most: holdMost, callers: make(chan struct{}, heldCallers(workers))},
	}
}

// Contend lets the workers send requests until lasts has passed, and waits for the last
// answers. It returns what was measured, also with an error. clock reads the database's
// clock.
func (c *Contest) Contend(ctx context.Context, lasts time.Duration, clock func(context.Context) (time.Time, error)) (Algorithm, error) {
	first, err := clock(ctx)
	if err != nil {
		return Algorithm{}, errors.Join(err, context.Cause(ctx))
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.hold(ctx, start.Add(lasts)); err != nil {
			stop(err)
		}
	})
	for i := range c.workers {
		wg.Go(func() {
			if err := c.work(ctx, c.clients[i%len(c.clients)], start.Add(lasts)); err != nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return c.report(time.Since(start), 0), context.Cause(ctx)
	}
	last, err := clock(ctx)
	// If the database's clock was set back meanwhile, use ours.
	return c.report(time.Since(start), max(time.Since(start), last.Sub(first))), err
}

// work is one worker. It counts for itself, and adds that to the contest at the end.
func (c *Contest) work(ctx context.Context, to Client, until time.Time) error {
	books := tallies{}
	var latencies []time.Duration
	var answered int64
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tallies.add(books)
		c.latencies = append(c.latencies, latencies...)
		c.answered += answered
	}()
	failures := 0
	for ctx.Err() == nil && (time.Now().Before(until) || !c.holding.over.Load()) {
		s, leave := c.pick()
		n := int64(1 + rand.IntN(maxCost))
		t := books.of(s.subject)
		t.requests++
		t.asked += n
		held := c.holding.begin(s.subject)
		began := time.Now()
		r, how, err := c.one(ctx, to, s, float64(n))
		took := time.Since(began)
		leave()
		switch {
		case err == nil:
			failures = 0
			answered++
			held.answered(s.subject)
		case errors.Is(err, limiter.ErrRetryTx):
			continue // the database reported that it was rolled back
		case Hopeless(err):
			return err
		default:
			t.unknown += n
			if how != left {
				failures++
			}
			if failures >= maxFailures {
				return fmt.Errorf("%d requests in a row failed, the last: %w", failures, err)
			}
			continue
		}
		if how == alone && s.kind != heldKind {
			latencies = append(latencies, took)
		}
		switch {
		case r.Allowed && how == rolledBack:
			t.rolledBack += n
		case r.Allowed:
			t.admitted += n
		case n == 1:
			s.usedUp()
		}
	}
	return nil
}

// pick chooses a worker's next request. The worker calls leave when it has its answer.
func (c *Contest) pick() (s request, leave func()) {
	if rand.IntN(freeKeys+heldKeys) < heldKeys {
		if leave, ok := c.holding.enter(); ok {
			if row := c.holding.now.Load(); row != nil {
				return row.request, leave
			}
			return c.groups.of(heldKind), leave
		}
	}
	return c.groups.pick(), nothing
}

// manner is the way in which a request was sent.
type manner int

const (
	alone manner = iota
	kept
	rolledBack
	left // by a client that may have disconnected before the answer
)

// one sends one request in one of the manners.
func (c *Contest) one(ctx context.Context, to Client, s request, n float64) (r limiter.Result, how manner, err error) {
	switch d := rand.IntN(1000); {
	case s.kind == heldKind: // in a transaction it would occupy its connection while it waits
	case d < inTxAndBack:
		r, err = to.RequestInTx(ctx, s.policy, s.key, n, false, nothing)
		return r, rolledBack, err
	case d < inTxAndBack+inTxAndKept:
		r, err = to.RequestInTx(ctx, s.policy, s.key, n, true, nothing)
		return r, kept, err
	case d < inTxAndBack+inTxAndKept+impatient:
		ctx, cancel := context.WithTimeout(ctx, rand.N(maxPatience))
		defer cancel()
		r, err = to.Request(ctx, s.policy, s.key, n)
		return r, left, err
	}
	r, err = to.Request(ctx, s.policy, s.key, n)
	return r, alone, err
}

func nothing() {}

// hold locks rows in transactions, one after the other, until until; at least one. It
// keeps each locked until requests for its key have begun and requests for others were
// answered.
func (c *Contest) hold(ctx context.Context, until time.Time) error {
	defer c.holding.over.Store(true)
	books := tallies{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tallies.add(books)
	}()
	failures := 0
	for done := false; ctx.Err() == nil && (!done || time.Now().Before(until)); {
		s := c.groups.of(heldKind)
		t := books.of(s.subject)
		t.requests++
		t.asked++
		commit := rand.IntN(2) == 0
		row := &heldRow{request: s, holding: &c.holding, enough: make(chan struct{})}
		stalled := false
		r, err := c.holder.RequestInTx(ctx, s.policy, s.key, 1, commit, func() { stalled = c.whileHeld(ctx, row) })
		c.count(row, stalled, err == nil)
		switch {
		case err == nil:
			done, failures = true, 0
		case errors.Is(err, limiter.ErrRetryTx):
			continue
		case Hopeless(err):
			return err
		default:
			t.unknown++
			if failures++; failures >= maxFailures {
				return fmt.Errorf("%d transactions in a row failed, the last: %w", failures, err)
			}
			continue
		}
		switch {
		case !r.Allowed:
			s.usedUp()
		case commit:
			t.admitted++
		default:
			t.rolledBack++
		}
	}
	return nil
}

// whileHeld returns when row was locked for long enough. stalled reports whether no
// other key was answered meanwhile.
func (c *Contest) whileHeld(ctx context.Context, row *heldRow) (stalled bool) {
	c.holding.now.Store(row)
	defer c.holding.now.Store(nil)
	if callers := c.holding.callers; len(callers) == cap(callers) { // their requests may have begun just before
		row.see(func() { row.called = true })
	}
	most := time.NewTimer(c.holding.most)
	defer most.Stop()
	select {
	case <-row.enough:
		return false
	case <-ctx.Done():
		return false
	case <-most.C:
		return row.seen() == 0
	}
}

// count adds a locked row to the report's counts.
func (c *Contest) count(row *heldRow, stalled, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meanwhile += row.seen()
	if stalled {
		c.stalls++
	}
	if whole {
		c.rowsHeld++
	}
}

// report compares the counts with the bounds for elapsed, measured by the database's
// clock. took is the time that the workers worked.
func (c *Contest) report(took, elapsed time.Duration) Algorithm {
	a := Algorithm{Algorithm: c.groups[hotKind].plans[0].Algorithm, Keys: len(c.tallies), Exceeded: []Excess{}}
	for s, t := range c.tallies {
		g := c.groups[s.kind]
		most := bound.Allowed(g.plans, elapsed)
		if s.kind != hotKind {
			most = math.Floor(most + bound.Slack)
		}
		a.Requests += t.requests
		a.Asked += t.asked
		a.Admitted += t.admitted
		a.Allowed += most
		a.RolledBack += t.rolledBack
		a.Unknown += t.unknown
		switch s.kind {
		case plansKind:
			a.Plans.add(t, most)
		case heldKind:
			a.Held.add(t, most)
		}
		if bound.Exceeded(float64(t.admitted), most) {
			a.Exceeded = append(a.Exceeded, Excess{g.largest(), s.key, t.admitted, most})
		}
	}
	a.Held.Rows, a.Held.Meanwhile, a.Held.Stalls = c.rowsHeld, c.meanwhile, c.stalls
	a.PerSecond = float64(c.answered) / took.Seconds()
	a.P99 = p99(c.latencies).Seconds()
	return a
}

// Hopeless reports whether no retry can succeed after err.
func Hopeless(err error) bool {
	return errors.Is(err, limiter.ErrMisconfigured) || errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnsupported) || pooler.Lost(err)
}
