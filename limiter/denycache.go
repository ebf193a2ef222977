package limiter

import (
	"context"
	"hash/maphash"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// Of the deny cache where Config has zeros.
const (
	// DefaultDenyCacheTTL is Config.DenyCacheTTL where it is 0.
	DefaultDenyCacheTTL = time.Second
	// DefaultDenyCacheKeys is Config.DenyCacheKeys where it is 0.
	DefaultDenyCacheKeys = 65_536
)

// denyCache remembers denials for a moment, so that a key that goes on asking
// costs the database nothing. It can only deny what the database would deny too,
// unless somebody gave something back meanwhile: this process empties the key
// then, and others' gifts are seen after the TTL. A nil one remembers nothing.
type denyCache struct {
	ttl     int64 // microseconds
	clock   func() int64
	denials *lru.Cache[deniedKey, *denial]
	// lifts counts, for each share of the keys, how often something was given
	// back: a denial that was decided before that must not be remembered after.
	lifts [256]atomic.Uint64
	seed  maphash.Seed
}

// deniedKey is a row by its caller's words: no HMAC is worked out to find it.
type deniedKey struct {
	policy    string
	algorithm Algorithm
	key       string
}

// denial is one that was answered, and all it takes to answer it again.
type denial struct {
	policy  Policy
	cost    float64
	rules   algorithm.Rules
	outcome outcome
	result  Result // for cost, as of received
	// When the statement was sent and answered, and for how long from its
	// sending on it answers others: microseconds of the cache's clock.
	sent, received, lasts int64
}

// attempt is a decision about to be asked for: what keep has to know of the
// time before.
type attempt struct {
	sent  int64
	lifts *atomic.Uint64 // nil: nothing is to be remembered
	seen  uint64
}

func newDenyCache(c *Config) (*denyCache, error) {
	if c.DenyCacheKeys < 0 {
		return nil, invalid("Config.DenyCacheKeys", strconv.Itoa(c.DenyCacheKeys), "must not be negative; a negative DenyCacheTTL is off")
	}
	if c.DenyCacheTTL < 0 {
		return nil, nil
	}
	denials, err := lru.New[deniedKey, *denial](c.DenyCacheKeys)
	if err != nil {
		return nil, err
	}
	return &denyCache{ttl: c.DenyCacheTTL.Microseconds(), clock: c.clock(), denials: denials, seed: maphash.MakeSeed()}, nil
}

// remembered answers an ask by a denial that holds still. If there is none, the
// attempt is for keep. A calendar's budget is asked of the database each time: its
// denials are few, and what is given back is to be had at once.
func (e *engine) remembered(ctx context.Context, v verb, in Ask) (Result, attempt, bool) {
	c := e.denied
	if c == nil || v != verbTake || in.IdempotencyKey != "" || in.Policy.Calendar != "" || e.inTx || e.closed.Load() || ctx.Err() != nil {
		return Result{}, attempt{}, false
	}
	now := c.clock()
	if d, ok := c.denials.Get(deniedKey{in.Policy.Name, in.Policy.Algorithm, in.Key}); ok && d.answers(now, in) {
		return d.answer(now, in.Cost), attempt{}, true
	}
	lifts := c.liftsOf(in.Key)
	return Result{}, attempt{sent: now, lifts: lifts, seen: lifts.Load()}, false
}

// keep remembers the answer to an attempt if it is a denial.
func (c *denyCache) keep(a attempt, q *question, in Ask, o outcome, r Result) {
	if a.lifts == nil || r.Allowed {
		return
	}
	d := &denial{policy: in.Policy, cost: in.Cost, rules: q.Rules, outcome: o, result: r, sent: a.sent}
	if q.now != nil {
		d.sent, d.received = o.now, o.now // that very clock decided
	} else {
		d.received = c.clock() + 1 // rounded up: nobody is told to come too early
	}
	d.lasts = min(c.ttl, r.RetryAfter.Microseconds())
	// What a denial may begin is asked of the database again: the next block when
	// this one ends, and the next window.
	if d.blocked() {
		d.lasts = min(d.lasts, o.blockedUntil-o.now)
	}
	if w, ok := o.view.(*algorithm.Window); ok && w.EndsAt > o.now {
		d.lasts = min(d.lasts, w.EndsAt-o.now)
	}
	d.result.Source, d.result.Reason = SourceCache, d.reason(in.Cost)
	// The caller's key may be a part of a large text, or of a buffer that is
	// used again.
	key := deniedKey{in.Policy.Name, in.Policy.Algorithm, strings.Clone(in.Key)}
	if a.lifts.Load() != a.seen {
		return
	}
	c.denials.Add(key, d)
	if a.lifts.Load() != a.seen { // while it was added
		c.denials.Remove(key)
	}
}

// lift forgets a key that something was given back to, or taken from its
// block, after the statement that did it.
func (c *denyCache) lift(p Policy, key string) {
	if c == nil {
		return
	}
	c.liftsOf(key).Add(1) // before Remove, see keep
	c.denials.Remove(deniedKey{p.Name, p.Algorithm, key})
}

func (c *denyCache) liftsOf(key string) *atomic.Uint64 {
	return &c.lifts[maphash.String(c.seed, key)%uint64(len(c.lifts))]
}

// answers reports whether the database would deny in too. What equals an ask
// that was valid is valid, and so is a larger cost up to 2^53. What a log
// returns tells of one cost alone.
func (d *denial) answers(now int64, in Ask) bool {
	return now >= d.sent && now-d.sent < d.lasts &&
		(in.Cost == d.cost || in.Cost > d.cost && in.Cost <= maxUnits && in.Policy.Algorithm != SlidingWindowLog) &&
		in.Policy == d.policy
}

// answer is the denial of cost, told at now.
func (d *denial) answer(now int64, cost float64) Result {
	r := d.result
	if cost != d.cost {
		o := &d.outcome
		fits := o.view.FitsAt(&d.rules, o.updatedAt, d.rules.Capacity, cost)
		r.RetryAfter, r.Reason = o.after(max(fits, o.blockedUntil)), d.reason(cost)
	}
	elapsed := duration(max(0, now-d.received))
	r.At = r.At.Add(elapsed)
	r.RetryAfter = less(r.RetryAfter, elapsed)
	r.ResetAfter = less(r.ResetAfter, elapsed)
	return r
}

// reason is why cost would be denied now that the denial is over: a block that
// began with it is a block to all others.
func (d *denial) reason(cost float64) Reason {
	if d.blocked() && algorithm.Fit(d.rules.Capacity, 0, cost) >= 1 {
		return ReasonBlocked
	}
	return ReasonLimit
}

func (d *denial) blocked() bool { return d.outcome.blockedUntil > d.outcome.updatedAt }

// less is what is left of a wait.
func less(wait, elapsed time.Duration) time.Duration {
	if wait == Never {
		return Never
	}
	return max(0, wait-elapsed)
}
