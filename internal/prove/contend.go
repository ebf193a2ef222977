package prove

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// client is one way to ask, such as a pool of connections. It is for concurrent
// use.
type client interface {
	// ask asks alone.
	ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error)
	// askInTx asks in a transaction and commits it, or rolls it back.
	askInTx(ctx context.Context, p limiter.Policy, key string, n float64, commit bool) (limiter.Result, error)
}

// What the keys allow. Cold keys are exact to the unit: their period is so much
// longer than the run that nothing comes back, and once one is used up the next
// takes its place, so that its first row is fought for too. Hot keys give back
// all the time.
const (
	coldKeys, coldLimit = 2, 30
	hotKeys, hotLimit   = 2, 100
	hotPeriod           = time.Second
	coldPeriods         = 1000 // runs in a cold period
	maxCost             = 3

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
	workers   int
	cold, hot limiter.Policy
	rounds    [coldKeys]atomic.Int64 // which cold key takes part
	mu        sync.Mutex
	tallies   map[subject]*tally
	latencies []time.Duration
	answered  int64
}

type subject struct {
	policy limiter.Policy
	key    string
}

// tally is what was seen of one key, in units.
type tally struct{ asks, asked, admitted, rolledBack, unknown int64 }

// newContest makes one; run tells it from other runs on the database.
func newContest(clients []client, workers int, a limiter.Algorithm, run string, lasts time.Duration) *contest {
	period := max(time.Hour, coldPeriods*lasts).Truncate(time.Microsecond)
	return &contest{
		clients: clients, workers: workers, tallies: map[subject]*tally{},
		cold: limiter.Policy{Name: policyName(run, "cold"), Algorithm: a, Limit: coldLimit, Period: period},
		hot:  limiter.Policy{Name: policyName(run, "hot"), Algorithm: a, Limit: hotLimit, Period: hotPeriod},
	}
}

func policyName(run, kind string) string { return "prove." + run + "." + kind }

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
	for ctx.Err() == nil && time.Now().Before(until) {
		s, cold, round := c.pick()
		n := int64(1 + rand.IntN(maxCost))
		t := books[s]
		if t == nil {
			t = &tally{}
			books[s] = t
		}
		t.asks++
		t.asked += n
		began := time.Now()
		r, how, err := c.one(ctx, to, s, float64(n))
		switch {
		case err == nil:
			failures = 0
			answered++
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
		if how == alone {
			latencies = append(latencies, time.Since(began))
		}
		switch {
		case r.Allowed && how == rolledBack:
			t.rolledBack += n
		case r.Allowed:
			t.admitted += n
		case cold >= 0 && n == 1:
			c.rounds[cold].CompareAndSwap(round, round+1)
		}
	}
	return nil
}

// hopeless are errors that no other try will better.
func hopeless(err error) bool {
	return errors.Is(err, limiter.ErrNotMigrated) || errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnsupported)
}

// pick chooses whom to ask for; cold is the place of a cold key, else -1.
func (c *contest) pick() (s subject, cold int, round int64) {
	if i := rand.IntN(coldKeys + hotKeys); i >= coldKeys {
		return subject{c.hot, fmt.Sprint("hot-", i-coldKeys)}, -1, 0
	} else {
		round = c.rounds[i].Load()
		return subject{c.cold, fmt.Sprintf("cold-%d-%d", i, round)}, i, round
	}
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
func (c *contest) one(ctx context.Context, to client, s subject, n float64) (r limiter.Result, how manner, err error) {
	switch d := rand.IntN(1000); {
	case d < inTxAndBack:
		r, err = to.askInTx(ctx, s.policy, s.key, n, false)
		return r, rolledBack, err
	case d < inTxAndBack+inTxAndKept:
		r, err = to.askInTx(ctx, s.policy, s.key, n, true)
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

// report holds what was seen to what elapsed, by the clock that decides,
// allows; took is how long the workers worked.
func (c *contest) report(took, elapsed time.Duration) Algorithm {
	a := Algorithm{Algorithm: c.hot.Algorithm, Keys: len(c.tallies), Exceeded: []Excess{}}
	for s, t := range c.tallies {
		most := allowed(s.policy, elapsed)
		if s.policy == c.cold {
			most = math.Floor(most + slack)
		}
		a.Asks += t.asks
		a.Asked += t.asked
		a.Admitted += t.admitted
		a.Allowed += most
		a.RolledBack += t.rolledBack
		a.Unknown += t.unknown
		if exceeds(float64(t.admitted), most) {
			a.Exceeded = append(a.Exceeded, Excess{s.policy, s.key, t.admitted, most})
		}
	}
	a.PerSecond = float64(c.answered) / took.Seconds()
	a.P99 = p99(c.latencies).Seconds()
	return a
}
