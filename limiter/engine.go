package limiter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// verb is what is asked of a key.
type verb int

const (
	verbTake    verb = iota // all or nothing
	verbUpTo                // what fits
	verbWait                // all or nothing, in time
	verbReserve             // all or nothing, and a hold
	verbCheck               // nothing, only tell
	verbFill
	verbRefund
)

// engine turns an Ask into a Result: it is behind both Limiter and Tx.
type engine struct {
	config   Config
	store    store
	holds    *holdWatch
	batches  *batches // nil: each decision is a statement of its own
	askers   *askerPool
	inTx     bool
	closed   *atomic.Bool
	degraded *degradedLog
	denied   *denyCache    // nil: none
	leaving  *sync.RWMutex // read-locked while places of a queue may go back
	// By how many microseconds the database's clock was ahead of this machine's
	// when they were last compared: see postgres.compare.
	ahead *atomic.Int64
}

// decide answers one ask. within is how long a Wait can wait; h is what is noted
// of an ask that leaves a hold or is remembered, nil for all others.
func (e *engine) decide(ctx context.Context, v verb, in Ask, within time.Duration, h *holding) (r Result, o outcome, err error) {
	if e.config.Observe != nil {
		defer func() { e.config.Observe(ctx, in, r, err) }()
	}
	r, asked, known := e.remembered(ctx, v, in)
	if known {
		return r, outcome{}, nil
	}
	a := e.askers.get()
	defer e.askers.free(a)
	q := &a.q
	if err := e.question(v, in, q); err != nil {
		return Result{}, outcome{}, err
	}
	if v == verbWait {
		q.room = min(q.Capacity, float64(float64(within.Microseconds())*q.Leak)+q.units)
	}
	switch {
	case v == verbWait:
		o, err = e.queue(ctx, in, *q)
	case e.batches != nil && v == verbTake && h == nil && q.possible():
		o, err = e.batches.take(ctx, a)
	default:
		o, err = e.askOnce(ctx, v, q, h)
	}
	if err == nil {
		o, err = e.reaping(ctx, v, q, h, o)
	}
	if v == verbRefund {
		e.denied.lift(in.Policy, in.Key)
	}
	if err != nil {
		if in.Policy.OnError == FailOpen && v != verbReserve && e.failsOpen(ctx, err) {
			return e.degrade(ctx, q, in.Policy, err), outcome{}, nil
		}
		if errors.Is(err, ErrOverloaded) {
			r.Reason = ReasonOverload
		}
		return r, outcome{}, err
	}
	if o.before != nil {
		return q.replay(o.before, in, v, e.store.source())
	}
	r = q.result(v, o, in.Policy, e.store.source())
	if v == verbUpTo && o.blockedUntil > o.updatedAt { // perhaps since what is remembered
		e.denied.lift(in.Policy, in.Key)
	}
	e.denied.keep(asked, q, in, o, r)
	return r, o, nil
}

// askOnce asks the store within Config.Timeout.
func (e *engine) askOnce(ctx context.Context, v verb, q *question, h *holding) (outcome, error) {
	return e.config.bounded(ctx, func(ctx context.Context) (outcome, error) {
		if h != nil && (q.possible() || h.idempotency != nil) {
			return e.store.reserve(ctx, q, h)
		}
		return e.ask(ctx, v, q)
	})
}

// ask asks the store. What can never fit is not tried: reading tells how the
// key stands.
func (e *engine) ask(ctx context.Context, v verb, q *question) (outcome, error) {
	switch {
	case v == verbFill:
		return e.store.fill(ctx, q)
	case v == verbRefund:
		return e.store.refund(ctx, q)
	case v == verbCheck, !q.possible():
		return e.store.get(ctx, q)
	}
	return e.store.take(ctx, q)
}

// question validates an ask and compiles it into q.
func (e *engine) question(v verb, in Ask, q *question) error {
	if err := e.subject(&in.Policy, in.Key, q); err != nil {
		return err
	}
	switch {
	case v == verbRefund && in.Policy.Algorithm == LeakyBucketQueue:
		return fmt.Errorf("%w: Refund on %s: a place in the queue goes back when its Wait is cancelled", ErrUnsupported, LeakyBucketQueue)
	case v == verbReserve && in.Policy.Algorithm == LeakyBucketQueue:
		return fmt.Errorf("%w: Reserve on %s: what waits in a queue is not given back", ErrUnsupported, LeakyBucketQueue)
	case v == verbWait && in.Policy.Algorithm != LeakyBucketQueue:
		return fmt.Errorf("%w: Wait on %s: only a %s tells when one's turn is; use Allow and RetryAfter", ErrUnsupported, in.Policy.Algorithm, LeakyBucketQueue)
	case v == verbWait && in.IdempotencyKey != "":
		return fmt.Errorf("%w: DoWait with an IdempotencyKey, which is for Do and Reserve", ErrUnsupported)
	}
	if err := validateCost(v, in.Cost, q.Burst); err != nil {
		return err
	}
	if err := validateIdempotencyKey(in.IdempotencyKey); err != nil {
		return err
	}
	q.units, q.cost, q.count, q.unit, q.room = in.Cost, in.Cost, 1, in.Cost, q.Capacity
	switch v {
	case verbUpTo:
		// Whole units of a whole ask; a fractional one is granted whole or in
		// steps of a millionth of the burst.
		q.cost = 1
		if in.Cost != math.Trunc(in.Cost) {
			q.cost = min(1e-6*q.Burst, in.Cost)
		}
		// A unit more may be less than a step, which is then what has to fit.
		q.count, q.unit = in.Cost/q.cost, min(max(1, q.cost), in.Cost)
	case verbFill, verbRefund:
		q.cost, q.count = 1, in.Cost
	}
	return nil
}

// subject validates policy and key, all that Reset, Block and Unblock need, and
// compiles them into q.
func (e *engine) subject(p *Policy, key string, q *question) error {
	if e.closed.Load() {
		return ErrClosed
	}
	if p.Name == "" || q.source != *p { // else q was about that valid policy before
		if err := p.Validate(); err != nil {
			return err
		}
		q.Rules, q.source = newRules(p), *p
	}
	if err := validateKey(key); err != nil {
		return err
	}
	*q = question{Rules: q.Rules, algorithm: p.Algorithm, source: q.source, policy: p.Name, key: storedKey(key, e.config.KeySecret), ahead: e.ahead}
	if !e.inTx {
		q.commit = p.commit()
	}
	q.now = e.now()
	return nil
}

func validateCost(v verb, cost, burst float64) error {
	value := strconv.FormatFloat(cost, 'g', -1, 64)
	switch {
	case cost == 0 && v == verbCheck:
		return nil
	case cost == 0:
		return invalid("cost", value, "must be positive; Check at cost 0 reads without consuming")
	case !(cost > 0) || cost > maxUnits:
		return invalid("cost", value, "must be positive and at most 2^53")
	case cost < leastCost(burst):
		return invalid("cost", value, fmt.Sprintf("must be at least %v, a billionth of the burst", leastCost(burst)))
	}
	return nil
}

// leastCost is a billionth of the burst, which rounding cannot lose; above a
// billion whole units are still exact.
func leastCost(burst float64) float64 { return min(1, 1e-9*burst) }

// result says what an outcome means for the ask.
func (q *question) result(v verb, o outcome, p Policy, source Source) Result {
	level := o.view.Level(&q.Rules, o.updatedAt)
	r := Result{
		Limit: p.Limit, Burst: q.Burst, Level: q.shown(level),
		Remaining:  max(0, q.Burst-level),
		ResetAfter: o.after(max(o.view.EmptyAt(&q.Rules, o.updatedAt), o.blockedUntil)),
		Full:       q.Burst-level <= q.Capacity-q.Burst,
		Source:     source,
		At:         time.UnixMicro(o.now),
	}
	isBlocked := o.blockedUntil > o.updatedAt
	if isBlocked {
		r.Remaining = 0
	}
	ahead := level // of this ask in a queue
	switch v {
	case verbFill, verbRefund:
		r.Allowed, r.Granted = true, q.granted(o)
		return r
	case verbCheck:
		r.Allowed = !isBlocked && (q.units == 0 || algorithm.Fit(q.Capacity, level, q.cost) >= 1)
		if r.Allowed {
			r.Granted = q.units
		}
	default:
		r.Allowed, r.Granted = o.granted > 0, q.granted(o)
		ahead -= r.Granted
		if r.Allowed && v != verbReserve { // a hold has Cancel
			r.grant = o.view.Counted(o.updatedAt)
			r.grant.Made = true
		}
	}
	if r.Allowed && q.algorithm == LeakyBucketQueue {
		r.Delay = duration(micros(max(0, ahead) / q.Leak))
	}
	if !r.Allowed {
		r.Reason = ReasonLimit
		// A block that begins with this very denial is its consequence.
		if o.granted == blocked || isBlocked && v == verbCheck {
			r.Reason = ReasonBlocked
		}
	}
	if !r.Allowed || r.Granted < q.units {
		at := o.updatedAt
		if q.units > 0 {
			at = o.view.FitsAt(&q.Rules, at, q.room, q.rest(r.Granted))
		}
		r.RetryAfter = o.after(max(at, o.blockedUntil))
	}
	return r
}

// shown is a level without the slack. What is above the capacity shows: it was spent
// by a larger plan, or beyond a hold. A sum's rounding is not taken for that.
func (q *question) shown(level float64) float64 {
	if level > float64(1.00000000000001*q.Capacity) {
		return level
	}
	return min(level, q.Burst)
}

// granted is how many units an outcome granted: exactly what was asked for if
// it was all.
func (q *question) granted(o outcome) float64 {
	if o.granted == q.count {
		return q.units
	}
	return max(0, o.granted*q.cost)
}

// after is a moment as a duration from the clock that was read.
func (o *outcome) after(us int64) time.Duration {
	if us == algorithm.Never {
		return Never
	}
	return duration(max(0, us-o.now))
}

// micros rounds to whole microseconds; what does not fit is never.
func micros(us float64) int64 {
	if us >= algorithm.Never {
		return algorithm.Never
	}
	return int64(math.Round(us))
}

// failsOpen tells whether FailOpen answers for an error.
func (e *engine) failsOpen(ctx context.Context, err error) bool {
	return !e.inTx && ctx.Err() == nil && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrClosed)
}

// degrade is the answer of FailOpen.
func (e *engine) degrade(ctx context.Context, q *question, p Policy, err error) Result {
	e.degraded.warn(ctx, e.config.Logger, p.Name, err)
	at := time.Now()
	if q.now != nil {
		at = time.UnixMicro(*q.now)
	}
	return Result{
		Allowed: true, Granted: q.units, Limit: p.Limit, Burst: q.Burst,
		Source: SourceDegraded, At: at,
	}
}

// degradedLog warns at most once every ten seconds.
type degradedLog struct {
	since atomic.Int64 // allowed since the last warning
	next  atomic.Int64 // not before, in Unix microseconds
}

func (l *degradedLog) warn(ctx context.Context, logger *slog.Logger, policy string, err error) {
	l.since.Add(1)
	now, next := time.Now(), l.next.Load()
	if now.UnixMicro() < next || !l.next.CompareAndSwap(next, now.Add(10*time.Second).UnixMicro()) {
		return
	}
	logger.WarnContext(ctx, "pglimit: allowed without a decision, as the policy fails open",
		"policy", policy, "since_last", l.since.Swap(0), "error", err)
}
