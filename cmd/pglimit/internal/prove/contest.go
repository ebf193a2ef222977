package prove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

// client sends requests, such as over a pool of connections. It is safe for concurrent
// use.
type client interface {
	verbs.Limiter
	// InTx calls do with the same methods in a transaction, and then commits or rolls
	// back.
	InTx(ctx context.Context, commit bool, do func(verbs.Limiter) error) error
}

const (
	// maxFailures in a row have the database as their reason, not killed clients.
	maxFailures = 10

	// Of 1,000 requests, the number in transactions that roll back and that commit, and
	// the number from clients that disconnect within maxPatience.
	inTxAndBack, inTxAndKept, impatient = 80, 80, 5
	maxPatience                         = 3 * time.Millisecond
)

// contest lets many workers send requests for a few keys of one algorithm concurrently, and
// compares what was admitted with what the algorithm allows.
type contest struct {
	algorithm limiter.Algorithm
	clients   []client
	workers   int
	places    []*place

	mu        sync.Mutex
	accounts  map[string]*account
	parts     map[Kind]*Part
	latencies []time.Duration
	answered  int
}

// newContest returns a contest on an algorithm. run is in the names of its policies.
func newContest(clients []client, workers int, a limiter.Algorithm, run string, lasts time.Duration) *contest {
	c := &contest{algorithm: a, clients: clients, workers: workers, places: newPlaces(a, run, lasts), accounts: map[string]*account{}, parts: map[Kind]*Part{}}
	for _, p := range c.places {
		c.parts[p.kind] = &Part{Kind: p.kind}
	}
	return c
}

// contend lets the workers send requests until lasts has passed, each at least one, waits for
// the last answers, and then reads what is counted. clock reads the database's clock.
func (c *contest) contend(ctx context.Context, lasts time.Duration, clock func(context.Context) (time.Time, error)) (a Algorithm, err error) {
	first, err := clock(ctx)
	if err != nil {
		return a, errors.Join(err, context.Cause(ctx))
	}
	start := time.Now()
	all, working := errgroup.WithContext(ctx)
	for i := range c.workers {
		all.Go(func() error { return c.work(working, c.clients[i%len(c.clients)], start.Add(lasts)) })
	}
	err = all.Wait()
	took := time.Since(start)
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		return a, err
	}
	last, err := clock(ctx)
	if err != nil {
		return a, err
	}
	if byOurs := first.Add(took); last.Before(byOurs) {
		last = byOurs // the database's clock was set back meanwhile
	}
	if err := c.check(ctx); err != nil {
		return a, err
	}
	return c.report(took, first, last), nil
}

// work is a worker, which sends requests one after the other.
func (c *contest) work(ctx context.Context, to client, until time.Time) error {
	for failures := 0; ctx.Err() == nil; {
		d := c.places[rand.IntN(len(c.places))].draw()
		a, how, err := c.ask(ctx, to, &d)
		fate := fateOf(err)
		c.count(&d, a, how, fate)
		switch {
		case fate == hopeless:
			return err
		case fate == answered:
			failures = 0
		case fate == unknown && how != left:
			if failures++; failures >= maxFailures {
				return fmt.Errorf("%d requests in a row failed, the last: %w", failures, err)
			}
		}
		if !time.Now().Before(until) {
			break
		}
	}
	return nil
}

// manner is the way in which a request was sent.
type manner int

const (
	alone manner = iota
	kept
	rolledBack
	left // by a client that may have disconnected before the answer
)

// ask sends a request in one of the manners.
func (c *contest) ask(ctx context.Context, to client, d *draw) (a verbs.Answer, how manner, err error) {
	send := func(ctx context.Context, l verbs.Limiter) error {
		a = d.Make(ctx, l)
		return a.Err
	}
	inTx := func(tx verbs.Limiter) error { return send(ctx, tx) }
	switch n := rand.IntN(1000); {
	case n < inTxAndBack:
		err = to.InTx(ctx, false, inTx)
		return a, rolledBack, err
	case n < inTxAndBack+inTxAndKept:
		err = to.InTx(ctx, true, inTx)
		return a, kept, err
	case n < inTxAndBack+inTxAndKept+impatient:
		ctx, cancel := context.WithTimeout(ctx, rand.N(maxPatience))
		defer cancel()
		err = send(ctx, to)
		return a, left, err
	}
	began := time.Now()
	if err = send(ctx, to); err == nil {
		took := time.Since(began)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.latencies = append(c.latencies, took)
	}
	return a, alone, err
}

// count counts what came of a request.
func (c *contest) count(d *draw, a verbs.Answer, how manner, fate fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	part := c.parts[d.kind]
	for i, key := range d.keys {
		part.Requests++
		part.Asked += d.units
		switch fate {
		case unknown:
			part.Unknown += d.units
			c.of(d, key, nil).Add(0, d.units)
		case answered:
			r := &a.PerRequest[i]
			of := c.of(d, key, r)
			of.look(d.Policy, *r)
			switch {
			case !a.Allowed:
			case !r.Allowed:
				of.wrong("an AllowAll was allowed although this key's request was not")
			case how == rolledBack:
				part.RolledBack += d.units
			default:
				of.Add(d.units, d.units)
			}
		}
	}
	if fate == answered {
		if c.answered++; !a.Allowed && d.units == 1 {
			d.usedUp()
		}
	}
}

// of returns the account of a key or, if its windows have fixed edges, of the window that it
// was answered in.
func (c *contest) of(d *draw, key string, r *limiter.Result) *account {
	if d.windowed() && r != nil {
		begins, _ := bound.Window(verbs.Plan(&d.Policy), r.At)
		key += " from " + stamp(begins)
	}
	of := c.accounts[key]
	if of == nil {
		of = &account{place: d.place, set: d.set}
		c.accounts[key] = of
	}
	return of
}

// fate says whether a request was answered, and what else may have come of it.
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
	case errors.Is(err, limiter.ErrMisconfigured), errors.Is(err, limiter.ErrInvalid), errors.Is(err, limiter.ErrUnsupported), pooler.Lost(err):
		return hopeless
	}
	return unknown
}
