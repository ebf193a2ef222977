package limiter

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/denycache"
	"github.com/pglimit/pglimit/internal/store"
)

// verb selects what a call does with a key.
type verb int

const (
	verbTake    verb = iota // all or nothing
	verbUpTo                // what fits
	verbWait                // all or nothing, in time
	verbReserve             // all or nothing, and a reservation
	verbCheck               // nothing, only read
	verbUsage
	verbCharge
	verbRefund
	verbUndo
	verbReset
	verbBlock
	verbUnblock
)

// decides reports whether the verb is a decision: Observe is called for it, and FailOpen
// may apply.
func (v verb) decides() bool { return v != verbUsage && v < verbReset }

// remembers reports whether a remembered denial may answer the verb.
func (v verb) remembers() bool { return v == verbTake || v == verbWait || v == verbReserve }

// givesBack reports whether the verb may allow requests that were denied before.
func (v verb) givesBack() bool { return v == verbRefund || v >= verbUndo }

// result returns an outcome as the Result of the request q.
func result(q *store.Query, v verb, o *store.Outcome, limit float64, source Source) Result {
	level := o.View.Level(&q.Rules, o.UpdatedAt)
	r := Result{
		Limit: limit, Burst: q.Burst, Level: shown(q, level),
		Remaining:  max(0, q.Burst-level),
		ResetAfter: after(o, max(o.View.EmptyAt(&q.Rules, o.UpdatedAt), o.BlockedUntil)),
		Full:       q.Burst-level <= q.Capacity-q.Burst,
		Source:     source,
		At:         time.UnixMicro(o.Now),
	}
	if o.IsBlocked() {
		r.Remaining = 0
	}
	ahead := level // of this request in a queue
	switch v {
	case verbCharge, verbRefund, verbUndo:
		r.Allowed, r.Granted = true, granted(q, o)
		return r
	case verbCheck, verbUsage:
		r.Allowed = !o.IsBlocked() && (q.Units == 0 || algorithm.Fit(q.Capacity, level, q.Cost) >= 1)
		if r.Allowed {
			r.Granted = q.Units
		}
	default:
		r.Allowed, r.Granted = o.Granted > 0, granted(q, o)
		ahead -= r.Granted
		if r.Allowed && v != verbReserve { // a reservation has Cancel
			r.grant = o.View.Counted(o.UpdatedAt)
			r.grant.Made = true
		}
	}
	if r.Allowed && q.Algorithm == algorithm.LeakyBucketQueue {
		r.Delay = duration(micros(max(0, ahead) / q.Leak))
	}
	if !r.Allowed {
		r.Reason = ReasonLimit
		// A block that begins with this denial is not its reason.
		if o.Blocked || o.IsBlocked() && v == verbCheck {
			r.Reason = ReasonBlocked
		}
	}
	if !r.Allowed || r.Granted < q.Units {
		at := o.UpdatedAt
		if q.Units > 0 {
			at = o.View.FitsAt(&q.Rules, at, q.Room, q.Rest(r.Granted))
		}
		r.RetryAfter = after(o, max(at, o.BlockedUntil))
	}
	return r
}

// shown returns a level without the slack. A level above the capacity, spent by a larger
// plan or beyond a reservation, is shown as it is; rounding of a sum is not.
func shown(q *store.Query, level float64) float64 {
	if level > float64(1.00000000000001*q.Capacity) {
		return level
	}
	return min(level, q.Burst)
}

// granted returns the number of units that an outcome granted: the exact request if it
// was all.
func granted(q *store.Query, o *store.Outcome) float64 {
	if o.Granted == q.Count {
		return q.Units
	}
	return o.Granted * q.Cost
}

// after returns the time from the clock reading of o until us.
func after(o *store.Outcome, us int64) time.Duration {
	if us == algorithm.Never {
		return Never
	}
	return duration(max(0, us-o.Now))
}

// micros rounds to whole microseconds, or to Never if they do not fit.
func micros(us float64) int64 {
	if us >= algorithm.Never {
		return algorithm.Never
	}
	return int64(math.Round(us))
}

// replay returns the earlier answer under the same idempotency key.
func replay(q store.Query, v verb, in *Request, before *store.Reservation, source Source) (Result, error) {
	if (v == verbReserve) == (before.State == store.Spent) {
		return Result{}, store.Invalid("IdempotencyKey", store.Quote(in.IdempotencyKey), "was used with the other of Do and Reserve; use another key")
	}
	if before.Reserved != in.Cost {
		return Result{}, store.Invalid("IdempotencyKey", store.Quote(in.IdempotencyKey),
			"was used with cost "+amount(before.Reserved)+", now with "+amount(in.Cost))
	}
	q.Rules = before.Rules
	o := store.Outcome{Granted: q.Count, Now: before.CreatedAt, UpdatedAt: before.CreatedAt}
	switch before.Algorithm.Family() {
	case algorithm.Windows:
		o.View = &algorithm.Window{Count: before.Level, EndsAt: before.EndsAt}
	case algorithm.Counters:
		o.View = &algorithm.Counter{Current: before.Level, EndsAt: before.EndsAt, Period: before.Period}
	case algorithm.Logs:
		o.View = algorithm.LogView{Units: before.Level, Newest: before.CountedAt}
	default:
		o.View = &algorithm.Bucket{Units: before.Level, LeakedAt: before.CountedAt}
	}
	r := result(&q, v, &o, before.Limit, source)
	r.Replayed, r.grant = true, algorithm.Grant{}
	return r, nil
}

// amount returns units as text without an exponent, as for money.
func amount(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// denials remembers denials in this process. A remembered denial denies only what the
// database would deny, unless units were given back since. What this process gives back
// removes the key's denial. What other processes give back is visible after the TTL.
type denials struct {
	*denycache.Cache[deniedKey, *denial]
	ttl   int64 // microseconds
	clock func() int64
}

// deniedKey identifies a row by the caller's key, in memory only: a lookup needs no HMAC
// with Config.KeySecret.
type deniedKey struct {
	policy    string
	algorithm Algorithm
	key       string
}

// denial is a denial by the database and the data to answer later requests.
type denial struct {
	policy  Policy
	cost    float64
	rules   algorithm.Rules
	outcome store.Outcome
	result  Result // for cost, as of received
	// sent and received are times of the statement, by the clock of denials. For lasts
	// after sent the denial answers requests. All are microseconds.
	sent, received, lasts int64
}

// attempt is a decision to remember if it is a denial.
type attempt struct {
	denycache.Attempt
	sent int64
}

func newDenials(keys int, ttl time.Duration, clock func() int64) (*denials, error) {
	c, err := denycache.New[deniedKey, *denial](keys)
	return &denials{Cache: c, ttl: ttl.Microseconds(), clock: clock}, err
}

// lookup returns the answer of a denial that still holds. If there is none, it returns an
// attempt for keep. Requests for a calendar's budget always go to the database: their
// denials are few, and what is given back must be visible immediately.
func (d *denials) lookup(in *Request) (Result, attempt, bool) {
	if in.IdempotencyKey != "" || in.Policy.Calendar != "" {
		return Result{}, attempt{}, false
	}
	now, k := d.clock(), deniedKey{in.Policy.Name, in.Policy.Algorithm, in.Key}
	if known, ok := d.Lookup(k); ok && known.answers(now, in) {
		return known.answer(now, in.Cost), attempt{}, true
	}
	return Result{}, attempt{d.Begin(k), now}, false
}

// keep remembers the denial r.
func (d *denials) keep(at attempt, q *store.Query, in *Request, o *store.Outcome, r Result) {
	n := &denial{policy: in.Policy, cost: in.Cost, rules: q.Rules, outcome: *o, result: r, sent: at.sent}
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
	n.result.Source, n.result.Reason = SourceCache, n.reason(in.Cost)
	// The caller's key may share memory with a large text or a reused buffer.
	d.Keep(at.Attempt, deniedKey{in.Policy.Name, in.Policy.Algorithm, strings.Clone(in.Key)}, n)
}

// forget removes a key's denial after a statement gave units back or lifted a block. A
// nil d remembers nothing.
func (d *denials) forget(p *Policy, key string) {
	if d != nil {
		d.Forget(deniedKey{p.Name, p.Algorithm, key})
	}
}

// answers reports whether the database would deny in, too. An equal request is valid, and
// so is a larger cost up to 2^53. Larger costs on a sliding log go to the database: its
// view is about one cost.
func (d *denial) answers(now int64, in *Request) bool {
	return now >= d.sent && now-d.sent < d.lasts &&
		(in.Cost == d.cost || in.Cost > d.cost && in.Cost <= algorithm.MaxUnits && in.Policy.Algorithm != SlidingWindowLog) &&
		in.Policy == d.policy
}

// answer returns the denial of cost at now.
func (d *denial) answer(now int64, cost float64) Result {
	r := d.result
	if cost != d.cost {
		o := &d.outcome
		fits := o.View.FitsAt(&d.rules, o.UpdatedAt, d.rules.Capacity, cost)
		r.RetryAfter, r.Reason = after(o, max(fits, o.BlockedUntil)), d.reason(cost)
	}
	elapsed := duration(max(0, now-d.received))
	r.At = r.At.Add(elapsed)
	r.RetryAfter = less(r.RetryAfter, elapsed)
	r.ResetAfter = less(r.ResetAfter, elapsed)
	return r
}

// reason returns why cost would be denied after this denial: a block that began with it
// is the reason for all later requests.
func (d *denial) reason(cost float64) Reason {
	if d.outcome.IsBlocked() && algorithm.Fit(d.rules.Capacity, 0, cost) >= 1 {
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
