package limiter

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/denycache"
	"github.com/pglimit/pglimit/internal/store"
)

// denials remembers denials in this process. A remembered denial denies only what the
// database would deny, unless units were given back since. What this process gives back
// removes the key's denial. What other processes give back is visible after the TTL.
type denials struct {
	*denycache.Cache[rowKey, *denial]
	ttl   int64 // microseconds
	clock func() int64
}

// denial is a denial by the database and the data to answer later requests.
type denial struct {
	cost    float64
	floor   int64
	rules   algorithm.Rules
	outcome store.Outcome
	result  Result // for cost, as of received; its Policy is the request's
	// sent and received are times of the statement, by the clock of denials. For lasts
	// after sent the denial answers requests. All are microseconds.
	sent, received, lasts int64
}

// attempt is a decision to remember if it is a denial.
type attempt struct {
	denycache.Attempt
	sent  int64
	again bool // the key was denied recently
}

// recently is the time for which a denied key is hot: see store.Group.
const recently = 10 * time.Second

func newDenials(keys int, ttl time.Duration, clock func() int64) (*denials, error) {
	c, err := denycache.New[rowKey, *denial](keys)
	return &denials{Cache: c, ttl: ttl.Microseconds(), clock: clock}, err
}

// lookup returns the answer of a denial that still holds. If there is none, it returns an
// attempt for keep. Requests for a calendar's budget or a balance always go to the database: their
// denials are few, and what is given back must be visible immediately.
func (d *denials) lookup(in *Request) (Result, attempt, bool) {
	if in.IdempotencyKey != "" || in.Policy.Calendar != "" || in.Policy.Algorithm == Balance {
		return Result{}, attempt{}, false
	}
	now, k := d.clock(), rowOf(in)
	known, ok := d.Lookup(k)
	if ok && known.answers(now, in) {
		return known.answer(now, in), attempt{}, true
	}
	return Result{}, attempt{d.Begin(k), now, ok && known.concerns(in) && now-known.sent < recently.Microseconds()}, false
}

// keep remembers the denial r.
func (d *denials) keep(at attempt, q *store.Query, in *Request, o *store.Outcome, r Result) {
	r.rows, r.Policy = 0, in.Policy
	n := &denial{cost: in.Cost, floor: q.Floor, rules: q.Rules, outcome: *o, result: r, sent: at.sent}
	if q.Now != nil {
		n.sent, n.received = o.Now, o.Now // this clock decided
	} else {
		n.received = d.clock() + 1 // rounded up: RetryAfter must not be early
	}
	n.lasts = min(d.ttl, r.RetryAfter.Microseconds())
	// The database decides again when the block or the window ends: a request then may
	// begin the next.
	if o.IsBlocked() {
		n.lasts = min(n.lasts, o.BlockedUntil-o.Now)
	}
	if w, ok := o.View.(*algorithm.Window); ok && w.EndsAt > o.Now {
		n.lasts = min(n.lasts, w.EndsAt-o.Now)
	}
	n.result.Source, n.result.Reason = SourceCache, n.reason(in.Cost, n.floor)
	d.Keep(at.Attempt, rowOf(in).clone(), n)
}

// forget removes a key's denial after a statement gave units back or lifted a block. A
// nil d remembers nothing.
func (d *denials) forget(k rowKey) {
	if d != nil {
		d.Forget(k)
	}
}

// freed forgets the denials of a stored key that units went back to. With a
// Config.KeySecret the caller's key is not known.
func (s *shared) freed(a algorithm.Name, policy, key string) {
	if len(s.keySecret) == 0 {
		s.denied.forget(rowKey{policy, a, key})
	}
}

// answers reports whether the database would deny in, too. An equal request is valid, and
// so is a larger cost up to 2^53. Larger costs and floors on a sliding log go to the
// database: its view is about one cost and one room.
func (d *denial) answers(now int64, in *Request) bool {
	return now >= d.sent && now-d.sent < d.lasts && d.concerns(in) &&
		(in.Cost == d.cost || in.Cost > d.cost && in.Cost <= algorithm.MaxUnits && in.Policy.Algorithm != SlidingWindowLog) &&
		in.Policy == d.result.Policy
}

// concerns reports whether the floor of in is valid and at least that of the denial. A denial
// by a higher floor says nothing about in.
func (d *denial) concerns(in *Request) bool {
	floor, err := millionths(in.Floor)
	return err == nil && (floor == d.floor || floor > d.floor && in.Policy.Algorithm != SlidingWindowLog)
}

// answer returns the denial of in at now.
func (d *denial) answer(now int64, in *Request) Result {
	r := d.result
	if floor, _ := millionths(in.Floor); in.Cost != d.cost || floor != d.floor {
		o := &d.outcome
		fits := o.View.FitsAt(&d.rules, o.UpdatedAt, store.Ceiling(d.rules.Capacity, floor), in.Cost)
		r.RetryAfter, r.Reason = after(o, max(fits, o.BlockedUntil)), d.reason(in.Cost, floor)
	}
	elapsed := duration(max(0, now-d.received))
	r.At = r.At.Add(elapsed)
	r.RetryAfter = less(r.RetryAfter, elapsed)
	r.ResetAfter = less(r.ResetAfter, elapsed)
	return r
}

// reason returns why cost would be denied above a floor after this denial: a block that began
// with it is the reason for all later requests.
func (d *denial) reason(cost float64, floor int64) Reason {
	if d.outcome.IsBlocked() && algorithm.Fit(store.Ceiling(d.rules.Capacity, floor), 0, cost) >= 1 {
		return ReasonBlocked
	}
	return ReasonLimit
}

// less returns the rest of a wait.
func less(wait, elapsed time.Duration) time.Duration {
	if wait == Never {
		return Never
	}
	return max(0, wait-elapsed)
}

// known returns the denial by remembered denials, if they suffice. If not, it begins an
// attempt for each group.
func (e *engine) known(s *set) (all Results, known bool) {
	for _, g := range s.groups {
		in := g.request()
		var r Result
		var denied bool
		if e.reusable(s, g) {
			continue
		}
		if r, g.at, denied = e.denied.lookup(&in); !denied {
			g.Contended = g.at.again
			continue
		}
		if !known {
			known = true
			all = e.untaken(s, false, r.At)
		}
		for i, index := range g.indexes {
			in.Cost = g.Needs[i]
			if r, _, denied := e.denied.lookup(&in); denied {
				all.PerRequest[index] = r
			}
		}
	}
	all.blame()
	return all, known && all.DeniedBy >= 0 // a denial may have ended meanwhile
}

// anyKnown reports whether remembered denials deny the whole by now. If not, the attempts
// begin now.
func (e *engine) anyKnown(s *set) bool {
	return slices.ContainsFunc(s.groups, func(g *group) (known bool) {
		if in := g.request(); !e.reusable(s, g) {
			_, g.at, known = e.denied.lookup(&in)
		}
		return known
	})
}

// keep remembers the denials of a set. A deadline denies only for itself.
func (e *engine) keep(s *set, all Results) {
	for _, g := range s.groups {
		if !g.at.Valid() || g.Hurried() {
			continue
		}
		for i, index := range g.indexes {
			if r := all.PerRequest[index]; !r.Allowed {
				q, o, in := g.Query, g.Outcome, s.requests[index]
				q.Units, q.Cost, q.Unit, in.Cost = g.Needs[i], g.Needs[i], g.Needs[i], g.Needs[i]
				o.View = g.Views[i]
				e.denied.keep(g.at, &q, &in, &o, r)
				break
			}
		}
	}
}
