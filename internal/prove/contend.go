package prove

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

// client is one way to ask, such as a pool of connections. It is for concurrent
// use.
type client interface {
	// ask asks alone.
	ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error)
	// askInTx asks in a transaction, calls before, and commits, or rolls back.
	askInTx(ctx context.Context, p limiter.Policy, key string, n float64, commit bool, before func()) (limiter.Result, error)
}

const (
	maxCost = 3

	// Of a thousand asks so many are made in transactions, and so many by
	// clients that leave within maxPatience.
	inTxAndBack, inTxAndKept, impatient = 80, 80, 5
	maxPatience                         = 3 * time.Millisecond

	// maxFailures in a row are no longer killed clients but a database in
	// trouble.
	maxFailures = 10
)

// contest is the contention on one algorithm.
type contest struct {
	clients   []client
	holder    client // holds rows
	workers   int
	kinds     map[kind]*group
	holding   holding
	mu        sync.Mutex
	tallies   map[subject]*tally
	latencies []time.Duration
	answered  int64
	rowsHeld  int64
	meanwhile int64
	stalls    int64
}

// tally is what was seen of one key, in units.
type tally struct{ asks, asked, admitted, rolledBack, unknown int64 }

// newContest makes one; run tells it from other runs on the database.
func newContest(clients []client, holder client, workers int, a limiter.Algorithm, run string, lasts time.Duration) *contest {
	return &contest{
		clients: clients, holder: holder, workers: workers, kinds: newGroups(a, run, lasts), tallies: map[subject]*tally{},
		holding: holding{most: holdMost, callers: make(chan struct{}, heldCallers(workers))},
	}
}

// contend lets the workers ask until lasts is over; an ask under way then is
// waited for. clock reads the database's.
func (c *contest) contend(ctx context.Context, lasts time.Duration, clock func(context.Context) (time.Time, error)) (Algorithm, error) {
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
	// Should the database's clock have been set back meanwhile, ours goes on.
	return c.report(time.Since(start), max(time.Since(start), last.Sub(first))), err
}

// work is one worker. It keeps its own books and hands them in at the end.
func (c *contest) work(ctx context.Context, to client, until time.Time) error {
	books := map[subject]*tally{}
	var latencies []time.Duration
	var answered int64
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.add(books)
		c.latencies = append(c.latencies, latencies...)
		c.answered += answered
	}()
	failures := 0
	for ctx.Err() == nil && (time.Now().Before(until) || !c.holding.over.Load()) {
		s, leave := c.pick()
		n := int64(1 + rand.IntN(maxCost))
		t := books[s.subject]
		if t == nil {
			t = &tally{}
			books[s.subject] = t
		}
		t.asks++
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
			continue // refused and rolled back, by the database's own word
		case hopeless(err):
			return err
		default:
			t.unknown += n
			if how != left {
				failures++
			}
			if failures >= maxFailures {
				return fmt.Errorf("%d asks in a row failed, the last: %w", failures, err)
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

// hopeless are errors that no other try will better.
func hopeless(err error) bool {
	return errors.Is(err, limiter.ErrNotMigrated) || errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnsupported) || pooler.Lost(err)
}

// manner is how an ask was made.
type manner int

const (
	alone manner = iota
	kept
	rolledBack
	left // by a client that may have gone before the answer
)

// one makes one ask in one of the manners.
func (c *contest) one(ctx context.Context, to client, s ask, n float64) (r limiter.Result, how manner, err error) {
	switch d := rand.IntN(1000); {
	case s.kind == heldKind: // a transaction would keep its connection while it waits
	case d < inTxAndBack:
		r, err = to.askInTx(ctx, s.policy, s.key, n, false, nothing)
		return r, rolledBack, err
	case d < inTxAndBack+inTxAndKept:
		r, err = to.askInTx(ctx, s.policy, s.key, n, true, nothing)
		return r, kept, err
	case d < inTxAndBack+inTxAndKept+impatient:
		ctx, cancel := context.WithTimeout(ctx, rand.N(maxPatience))
		defer cancel()
		r, err = to.ask(ctx, s.policy, s.key, n)
		return r, left, err
	}
	r, err = to.ask(ctx, s.policy, s.key, n)
	return r, alone, err
}

func nothing() {}

// add sums a worker's books up.
func (c *contest) add(books map[subject]*tally) {
	for s, b := range books {
		t := c.tallies[s]
		if t == nil {
			t = &tally{}
			c.tallies[s] = t
		}
		t.asks += b.asks
		t.asked += b.asked
		t.admitted += b.admitted
		t.rolledBack += b.rolledBack
		t.unknown += b.unknown
	}
}
