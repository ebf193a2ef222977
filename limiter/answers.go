package limiter

import (
	"math"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
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

// decides reports whether the verb is a decision: it has a Result, and FailOpen may apply.
func (v verb) decides() bool { return v != verbUsage && v < verbReset }

// requests reports whether the verb can be denied.
func (v verb) requests() bool { return v <= verbCheck }

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
