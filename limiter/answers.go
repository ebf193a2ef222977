package limiter

import (
	"cmp"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store"
)

// verb is what a method does with a key, or with several.
type verb struct {
	name Verb
	kind store.Kind // what it sends; a request that can never fit only reads the key

	answers   bool // it has a Result and a cost
	opens     bool // FailOpen may apply
	requests  bool // it can be denied, and passes for an unlimited key
	remembers bool // a remembered denial may answer it
	givesBack bool // it may allow requests that were denied before
	reads     bool // its cost may be 0
	waits     bool // in a queue
	once      bool // it takes an IdempotencyKey
	upTo      bool // it is granted what fits
	pools     bool // other requests may be granted instead: its denial begins no block

	serves served
}

// served says which policies a verb serves.
type served uint8

const (
	servesMeters   served = iota // all but those of Attempts and Concurrency
	servesAttempts               // those of Attempts
	servesSlots                  // those of Concurrency
	servesAll
)

var (
	verbTake        = &verb{name: VerbAllow, kind: store.Take, answers: true, opens: true, requests: true, remembers: true, once: true}
	verbUpTo        = &verb{name: VerbAllowUpTo, kind: store.Take, answers: true, opens: true, requests: true, upTo: true}
	verbReserve     = &verb{name: VerbReserve, kind: store.Reserve, answers: true, requests: true, remembers: true, once: true}
	verbReserveUpTo = &verb{name: VerbReserveUpTo, kind: store.Reserve, answers: true, requests: true, upTo: true, once: true}
	verbCheck       = &verb{name: VerbCheck, kind: store.Get, answers: true, opens: true, requests: true, reads: true, serves: servesAll}
	verbUsage       = &verb{name: VerbUsage, kind: store.GetUsage, answers: true, reads: true, serves: servesAll}
	verbCharge      = &verb{name: VerbCharge, kind: store.Charge, answers: true, opens: true}
	verbGrant       = &verb{name: VerbGrant, kind: store.Grant, answers: true, givesBack: true, once: true}
	verbRefund      = &verb{name: VerbRefund, kind: store.Refund, answers: true, opens: true, givesBack: true}
	verbUndo        = &verb{name: VerbUndo, kind: store.Undo, answers: true, opens: true, givesBack: true}
	verbNoUndo      = &verb{name: VerbUndo, kind: store.Get, answers: true, opens: true, reads: true} // of what granted nothing
	verbReset       = &verb{name: VerbReset, kind: store.Reset, givesBack: true, serves: servesAll}
	verbBlock       = &verb{name: VerbBlock, kind: store.Block, givesBack: true, serves: servesAll}
	verbUnblock     = &verb{name: VerbUnblock, kind: store.Unblock, givesBack: true, serves: servesAll}

	verbSettle = &verb{name: VerbSettle}
	verbCancel = &verb{name: VerbCancel}

	verbAttempt   = &verb{name: VerbAttempt, kind: store.Attempt, answers: true, requests: true, serves: servesAttempts}
	verbSucceeded = &verb{name: VerbSucceeded, kind: store.Succeeded}
	verbFailed    = &verb{name: VerbFailed, kind: store.Failed}

	verbAcquire = &verb{name: VerbAcquire, kind: store.Acquire, answers: true, requests: true, serves: servesSlots}
	verbRenew   = &verb{name: VerbRenew, kind: store.Renew}
	verbRelease = &verb{name: VerbRelease, kind: store.Release}

	// Those of sets.
	verbReserveAll = &verb{name: VerbReserve, kind: store.Reserve, answers: true, requests: true, once: true}
	verbAll        = &verb{name: VerbAllowAll, kind: store.Take, answers: true, requests: true, once: true}
	verbWait       = &verb{name: VerbWait, kind: store.Take, answers: true, requests: true, waits: true}
	verbWaitAll    = &verb{name: VerbWaitAll, kind: store.Take, answers: true, requests: true, waits: true}

	verbAny       = &verb{name: VerbAllowAny, kind: store.Take, answers: true, opens: true, requests: true, pools: true, once: true}
	verbAnyClosed = &verb{name: VerbAllowAny, kind: store.Take, answers: true, requests: true, pools: true, once: true} // if a policy is FailClosed
	verbSplit     = &verb{name: VerbAllowAny, requests: true, upTo: true, once: true}
)

// result returns an outcome as the Result of the request q.
func result(q *store.Query, v *verb, o *store.Outcome, limit float64, source Source) Result {
	level := o.View.Level(&q.Rules, o.UpdatedAt)
	r := Result{
		Limit: limit, Burst: q.Burst, Level: shown(q, level),
		Remaining:  remaining(q, level),
		ResetAfter: after(o, max(o.View.EmptyAt(&q.Rules, o.UpdatedAt), o.BlockedUntil)),
		Full:       q.Burst-level <= q.Capacity-q.Burst,
		Source:     source,
		At:         time.UnixMicro(o.Now),
	}
	if o.IsBlocked() {
		r.Remaining = 0
	}
	if q.Algorithm == algorithm.Balance {
		r.Level = max(0, level) // the debt
	}
	ahead := level // the units before this request's in a queue
	switch v {
	case verbCharge, verbGrant, verbRefund, verbUndo, verbNoUndo:
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
		if r.Allowed && v.kind != store.Reserve { // a reservation has Cancel
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
		if o.Blocked || o.IsBlocked() && (v == verbCheck || v == verbUsage) {
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

// undecided returns the answer to a request without a decision.
func undecided(in *Request, source Source, at time.Time) Result {
	return Result{Limit: in.Policy.Limit, Burst: in.Policy.room(), Source: source, At: at}
}

// failure returns the Result beside an error.
func failure(err error) (r Result) {
	if errors.Is(err, store.ErrOverloaded) {
		r.Reason = ReasonOverload
	}
	return r
}

// shadow marks the answer of a shadow policy, and lets pass what that denied or granted in
// part. The policy decides, counts, blocks and remembers denials as any other. Only its
// answer to the caller differs, so its counts are those of the same policy enforced.
func (r *Result) shadow(v *verb, in *Request) {
	if v.requests && r.Source != SourceDegraded && r.Source != SourceSkipped && (!r.Allowed || v.upTo && r.Granted < in.Cost) {
		r.Allowed, r.Granted, r.Shadowed, r.grant = true, in.Cost, true, algorithm.Grant{}
	}
}

// remaining returns the room above a level: whole units if the cost and the burst are whole.
// With the slack, three units that rounding made 2.9999999999 are three.
func remaining(q *store.Query, level float64) float64 {
	if q.Units == math.Floor(q.Units) && q.Burst == math.Floor(q.Burst) {
		return max(0, math.Floor(q.Burst-level+(q.Capacity-q.Burst)))
	}
	return max(0, q.Burst-level)
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
func replay(c *call, before *store.Reservation, source Source) (Result, error) {
	q, v, in, cost := c.op.Query, c.verb, &c.request, cmp.Or(c.asked, c.request.Cost)
	asked := cmp.Or(before.Requested, before.Reserved)
	switch {
	case (v == verbGrant) != (before.State == store.Granted):
		return Result{}, store.Invalid("IdempotencyKey", store.Quote(in.IdempotencyKey), "was used with the other of Do and Grant; use another key")
	case v != verbGrant && (v.kind == store.Reserve) == (before.State == store.Spent):
		return Result{}, store.Invalid("IdempotencyKey", store.Quote(in.IdempotencyKey), "was used with the other of Do and Reserve; use another key")
	case asked != cost:
		return Result{}, store.Invalid("IdempotencyKey", store.Quote(in.IdempotencyKey),
			"was used with cost "+amount(asked)+", now with "+amount(cost))
	case (v == verbReserve || v == verbReserveAll) && !in.Estimate && before.Reserved != cost:
		return Result{}, store.Invalid("IdempotencyKey", store.Quote(in.IdempotencyKey),
			"was used with ReserveUpTo or an Estimate: "+amount(before.Reserved)+" units are reserved; use another key")
	}
	q.Rules = before.Rules
	o := store.Outcome{Granted: q.Count, Now: before.CreatedAt, UpdatedAt: before.CreatedAt}
	switch before.Algorithm.Family() {
	case algorithm.Windows:
		o.View = &algorithm.Window{Count: before.Level, EndsAt: before.EndsAt}
	case algorithm.Counters:
		o.View = &algorithm.Counter{Current: before.Level, EndsAt: before.EndsAt, Period: before.Period}
	case algorithm.Balances:
		o.View = algorithm.AccountView{Units: before.Level}
	case algorithm.Logs:
		o.View = algorithm.LogView{Units: before.Level, Newest: before.CountedAt}
	default:
		o.View = &algorithm.Bucket{Units: before.Level, LeakedAt: before.CountedAt}
	}
	r := result(&q, v, &o, before.Limit, source)
	if r.Granted = before.Reserved; math.Abs(asked-r.Granted) <= 1e-12*asked { // the steps of a fraction are rounded
		r.Granted = asked
	}
	r.Replayed, r.grant = true, algorithm.Grant{}
	return r, nil
}

// amount returns units as text without an exponent, as for money, unless it would fill lines.
func amount(v float64) string {
	if math.Abs(v) >= 1e21 {
		return printable.Number(v)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// share returns the i-th request's answer after all were granted, as of before the
// requests after it.
func (g *group) share(v *verb, i int, in *Request, source Source) Result {
	q, o := g.Query, g.Outcome
	o.View = o.View.Less(q.Units - g.Needs[i])
	q.Units, q.Cost, q.Unit = in.Cost, in.Cost, in.Cost
	return result(&q, v, &o, in.Policy.Limit, source)
}

// refused returns the i-th request's answer after the whole was denied: whether the requests of
// the group up to it would have fitted, and its RetryAfter.
func (g *group) refused(i int, in *Request, source Source) Result {
	q, o, need := g.Query, g.Outcome, g.Needs[i]
	o.View = g.Views[i]
	q.Room = min(q.Ceiling(), g.ahead+in.Cost)
	if o.Granted == 0 && !o.Blocked && algorithm.Fit(q.Room, o.View.Level(&q.Rules, o.UpdatedAt), need) >= 1 {
		o.Granted = 1 // this request alone
	}
	q.Units, q.Cost, q.Unit = need, need, need
	r := result(&q, verbTake, &o, in.Policy.Limit, source)
	r.Granted, r.Delay, r.grant = 0, 0, algorithm.Grant{}
	return r
}
