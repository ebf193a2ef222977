package prove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/duration"
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

	maxChecked = 100 // sets whose counts are read at the end
	tolerance  = 0.5 // units that may have leaked; all costs are whole
	// agreeWithin is the time for requests in flight of disconnected clients, after which
	// the keys of a set must agree.
	agreeWithin = 2 * time.Second
	agreeEvery  = 20 * time.Millisecond
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
	err = cmp.Or(all.Wait(), context.Cause(ctx))
	took := time.Since(start)
	var last time.Time
	if err == nil {
		last, err = clock(ctx)
	}
	if err == nil {
		err = c.check(ctx)
	}
	if err != nil {
		return a, err
	}
	if byOurs := first.Add(took); last.Before(byOurs) {
		last = byOurs // the database's clock was set back meanwhile
	}
	return c.report(took, first, last), nil
}

// work is a worker, which sends requests one after the other.
func (c *contest) work(ctx context.Context, to client, until time.Time) error {
	for failures := 0; ctx.Err() == nil; {
		d := c.places[rand.IntN(len(c.places))].draw()
		a, what, err := c.ask(ctx, to, &d)
		c.count(&d, a, what)
		switch what {
		case hopeless:
			return err
		case answered, rolledBack:
			failures = 0
		case unknown:
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

// ask sends a request: in a transaction, from a client that may disconnect, or alone.
func (c *contest) ask(ctx context.Context, to client, d *draw) (a verbs.Answer, what fate, err error) {
	send := func(l verbs.Limiter) error {
		a = d.Make(ctx, l)
		return a.Err
	}
	switch n := rand.IntN(1000); {
	case n < inTxAndBack+inTxAndKept:
		commit := n >= inTxAndBack
		if err = to.InTx(ctx, commit, send); err == nil && !commit {
			return a, rolledBack, nil
		}
	case n < inTxAndBack+inTxAndKept+impatient:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(maxPatience))
		defer cancel()
		if err = send(to); fateOf(err) == unknown {
			return a, left, err
		}
	default:
		began := time.Now()
		if err = send(to); err == nil {
			took := time.Since(began)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.latencies = append(c.latencies, took)
		}
	}
	return a, fateOf(err), err
}

// count counts what came of a request.
func (c *contest) count(d *draw, a verbs.Answer, what fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	part := c.parts[d.kind]
	for i, key := range d.keys {
		part.Requests++
		part.Asked += d.units
		switch what {
		case unknown, left:
			part.Unknown += d.units
			c.of(d, key, nil).Add(0, d.units)
		case answered, rolledBack:
			r := &a.PerRequest[i]
			of := c.of(d, key, r)
			of.look(d.Policy, *r)
			switch {
			case !a.Allowed:
			case !r.Allowed:
				of.wrong("an AllowAll was allowed although this key's request was not")
			case what == rolledBack:
				part.RolledBack += d.units
			default:
				of.Add(d.units, d.units)
			}
		}
	}
	if what == answered || what == rolledBack {
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
		of = &account{place: d.place}
		c.accounts[key] = of
	}
	return of
}

// check compares what the database counts for the keys of some sets with what their clients
// were answered. It begins when no worker sends any more.
func (c *contest) check(ctx context.Context) error {
	sets := map[string][]string{}
	for key, of := range c.accounts {
		if set := key[:strings.LastIndexByte(key, '-')]; of.kind == Sets && (sets[set] != nil || len(sets) < maxChecked) {
			sets[set] = append(sets[set], key)
		}
	}
	until := time.Now().Add(agreeWithin)
	for _, keys := range sets {
		levels, err := c.levels(ctx, keys, until)
		if err != nil {
			return err
		}
		for i, key := range keys {
			if of := c.accounts[key]; !agree(levels) {
				of.wrong("%.2f units are counted, but the keys that were always requested with it have another count", levels[i])
			} else if _, _, err := of.Judge(levels[i], tolerance); err != nil {
				of.wrong("%v", err)
			}
		}
	}
	return nil
}

func agree(levels []float64) bool { return slices.Max(levels)-slices.Min(levels) <= tolerance }

// levels returns the units counted for keys that should agree, once they do or until has passed.
func (c *contest) levels(ctx context.Context, keys []string, until time.Time) (levels []float64, err error) {
	for failures := 0; ; {
		levels, err = nil, nil
		for _, key := range keys {
			usage, failed := c.clients[rand.IntN(len(c.clients))].Usage(ctx, c.accounts[key].bounding()[0], key)
			levels, err = append(levels, usage.Result.Level), cmp.Or(err, failed)
		}
		if err != nil {
			if failures++; failures >= maxFailures || fateOf(err) == hopeless {
				return nil, fmt.Errorf("read a key's usage: %w", err)
			}
		} else if agree(levels) || time.Now().After(until) {
			return levels, nil
		}
		if err := pause(ctx, agreeEvery); err != nil {
			return nil, err
		}
	}
}

// report compares the accounts with the bounds between two times of the database's clock.
// took is the time that the workers worked.
func (c *contest) report(took time.Duration, from, to time.Time) Algorithm {
	a := Algorithm{
		Algorithm: c.algorithm, PerSecond: float64(c.answered) / took.Seconds(), P99: duration.P99(c.latencies).Seconds(),
		Exceeded: []Excess{}, Faults: []Fault{},
	}
	for _, key := range slices.Sorted(maps.Keys(c.accounts)) {
		of := c.accounts[key]
		part, most := c.parts[of.kind], of.allowed(from, to)
		part.Keys++
		part.Admitted += of.Acknowledged
		part.Allowed += most
		if bound.Exceeded(of.Acknowledged, most) {
			a.Exceeded = append(a.Exceeded, Excess{of.plans[0], key, of.Acknowledged, most})
		}
		if of.fault != "" {
			a.Faults = append(a.Faults, Fault{of.plans[0], key, of.fault})
		}
	}
	for _, k := range kinds {
		if part := c.parts[k]; part != nil {
			a.Add(part)
			a.Kinds = append(a.Kinds, *part)
		}
	}
	return a
}

// fate says whether a request was answered, and what else may have come of it.
type fate int

const (
	answered   fate = iota
	rolledBack      // answered, in a transaction that was rolled back
	undone          // the database reported that it was rolled back
	unknown         // it may be counted
	left            // unknown, because the client disconnected before the answer
	hopeless        // no retry can succeed
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
