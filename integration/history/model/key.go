package model

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// Rules are a policy's numbers.
type Rules struct {
	algorithm.Rules
	Algorithm limiter.Algorithm
	Limit     float64
	Ceiling   float64 // the capacity without the request's floor
	Sums      bool    // the units spent are summed
}

// rulesOf compiles a valid policy.
func rulesOf(p limiter.Policy) *Rules {
	r := &Rules{Algorithm: p.Algorithm, Limit: p.Limit, Sums: p.UsageBy != "", Rules: algorithm.Rules{
		Burst: p.Burst, Tick: max(1, p.Tick.Microseconds()), Period: p.Period.Microseconds(),
		Aligned: p.Aligned, BlockFor: p.BlockFor.Microseconds(),
	}}
	if r.Burst == 0 {
		r.Burst = p.Limit
	}
	if p.Algorithm == limiter.Balance {
		r.Burst, r.Capacity, r.Ceiling, r.Leak = p.Overdraft, p.Overdraft, p.Overdraft, 1
		return r
	}
	r.Capacity = r.Burst + min(1e-6, 1e-9*r.Burst)
	r.Ceiling = r.Capacity
	switch {
	case r.family() == algorithm.Buckets:
		r.Leak = p.Limit * float64(r.Tick) / float64(r.Period)
	case p.Calendar != "":
		anchor, _ := algorithm.AnchorOf(p.Anchor)
		r.Calendar, _ = algorithm.CalendarOf(algorithm.Unit(p.Calendar), p.TimeZone, anchor)
	}
	return r
}

func (r *Rules) family() algorithm.Family { return algorithm.Name(r.Algorithm).Family() }

func (r *Rules) queue() bool { return r.Algorithm == limiter.LeakyBucketQueue }

// rules returns the rules of a request for a key. That of a pool of an AllowAny begins no block.
func (op *Op) rules() *Rules {
	r := rulesOf(op.Policy).above(op.Floor)
	if op.Pool {
		r.BlockFor = 0
	}
	return r
}

// above returns rules that keep a share of the burst free. Their denials begin no block.
func (r *Rules) above(floor float64) *Rules {
	if floor != 0 {
		r.Ceiling, r.BlockFor = r.Capacity-r.Capacity*floor, 0
	}
	return r
}

// possible reports whether units can ever fit.
func (r *Rules) possible(units float64) bool {
	return r.Algorithm == limiter.Balance || algorithm.Fit(r.Ceiling, 0, units) >= 1
}

// Key is the state of one key under one policy.
type Key struct {
	State   algorithm.State // nil: it was not used since the last Reset
	Rules   algorithm.Rules // of the last decision; without a Capacity there was none
	Clock   int64           // of the last decision
	Blocked int64           // until then
	Denied  int64           // when the denial was that began the block; 0: it is an operator's
	Begun   begun           // the block that an attempt of an operation has started
	Tries   []*tries        // of a policy of attempts, by their sources; the other fields are then zero
	Slots   algorithm.Slots // of a policy of concurrency; likewise
	Sum     float64         // of the units spent, if its policy has sums
}

// begun is a block that an operation lifts if it is tried once more.
type begun struct {
	Op    int
	Until int64
}

// lift lifts the block of an operation's first attempt.
func (k *Key) lift(op int) {
	if op != 0 && k.Begun.Op == op {
		if k.Blocked == k.Begun.Until {
			k.Blocked = 0
		}
		k.Begun = begun{}
	}
}

// count adds to the sum of the units spent.
func (k *Key) count(r *Rules, units float64) {
	if r.Sums {
		k.Sum += units
	}
}

func (k *Key) equal(o *Key) bool {
	return k.Sum == o.Sum && k.Clock == o.Clock && k.Blocked == o.Blocked && k.Denied == o.Denied && k.Begun == o.Begun && k.Rules == o.Rules && reflect.DeepEqual(k.State, o.State) &&
		equalSlots(&k.Slots, &o.Slots) && slices.EqualFunc(k.Tries, o.Tries, func(a, b *tries) bool { return a.equal(b) })
}

// clone returns a copy that shares nothing.
func (k *Key) clone() Key {
	c := *k
	if k.State != nil {
		c.State = k.State.Clone()
	}
	c.Slots, c.Tries = cloneSlots(k.Slots), nil
	for _, t := range k.Tries {
		c.Tries = append(c.Tries, &tries{Tries: *t.Tries.Clone(), Source: t.Source, Rules: t.Rules})
	}
	return c
}

// tidy makes keys equal that decide alike: it drops the entries of a log that have left, and
// begins its running totals again. Of a balance it forgets what the last decision spent from.
func (k *Key) tidy() {
	if l, ok := k.State.(*algorithm.Log); ok {
		l.Advance(&algorithm.Rules{Period: l.Keep}, k.Clock, k.Clock)
	}
	if a, ok := k.State.(*algorithm.Account); ok {
		if a.Parts = nil; len(a.Lots) == 0 {
			a.Lots = nil
		}
	}
}

// String describes a key.
func (k *Key) String() string {
	return fmt.Sprintf("%+v clock %d blocked %d last burst %v per %d", k.State, k.Clock, k.Blocked, k.Rules.Burst, k.Rules.Period)
}

// begin makes a key that was not used, and returns the time of a decision: the clock of a
// key never moves back.
func (k *Key) begin(r *Rules, now int64) (at int64) {
	if k.State == nil {
		*k = Key{State: algorithm.New(r.family(), now), Rules: algorithm.Rules{Leak: 1, Tick: 1, Period: 1}, Clock: now, Sum: k.Sum}
	}
	return max(k.Clock, now)
}

// present returns a copy of a key that was used, and the time of a decision.
func (k *Key) present(r *Rules, now int64) (c Key, at int64) {
	c = k.clone()
	return c, c.begin(r, now)
}

func (k *Key) blocked(now int64) bool { return k.State != nil && k.Blocked > max(k.Clock, now) }

// used returns the units in use for a request by r.
func (k *Key) used(r *Rules, now int64) float64 {
	c, at := k.present(r, now)
	return c.State.Used(&r.Rules, now, at)
}

// fits reports whether units fit into a room.
func (k *Key) fits(r *Rules, now int64, room, units float64) bool {
	return algorithm.Fit(room, k.used(r, now), units) >= 1
}

// deny notes a denial by r, which changes only what time has changed. A counter's first
// window begins with its row.
func (k *Key) deny(r *Rules, now int64) {
	fresh := k.State == nil
	at := k.begin(r, now)
	if r.family() == algorithm.Counters && fresh {
		k.State.Advance(&r.Rules, now, at)
	}
	k.State.Deny(&r.Rules, now, at)
	k.Rules, k.Clock = r.Rules, at
}

// put counts units that fit.
func (k *Key) put(r *Rules, units float64, now int64) {
	at := k.begin(r, now)
	k.State.Advance(&r.Rules, now, at)
	k.State.Put(at, units)
	k.count(r, units)
	k.Rules, k.Clock = r.Rules, at
}

// take requests units into a room: all or nothing, or what fits.
func (k *Key) take(r *Rules, units float64, upTo bool, room float64, now int64) limiter.Result {
	piece, count := units, 1.0
	if upTo {
		piece, count = 1, units
	}
	granted, blocked := 0.0, k.blocked(now)
	switch fit := algorithm.Fit(room, k.used(r, now), piece); {
	case !r.possible(piece): // the key is only read
		blocked = false
	case !blocked && fit >= 1:
		granted = piece * min(count, fit)
		k.put(r, granted, now)
	default:
		k.deny(r, now)
		if !blocked && r.BlockFor > 0 {
			k.Blocked, k.Denied = k.Clock+r.BlockFor, k.Clock
		}
	}
	a := k.standing(r, now)
	a.Allowed, a.Granted = granted > 0, granted
	if a.Allowed {
		a.Delay = r.delay(a.Level - granted)
	} else {
		a.Reason = reason(blocked)
	}
	if granted < units {
		a.RetryAfter = k.wait(r, now, room, min(piece, units-granted))
	}
	return a
}

// check reads what a request would be answered.
func (k *Key) check(r *Rules, units float64, now int64) limiter.Result {
	a := k.standing(r, now)
	a.Allowed = !k.blocked(now) && (units == 0 || k.fits(r, now, r.Capacity, units))
	if a.Allowed {
		a.Granted, a.Delay = units, r.delay(a.Level)
		return a
	}
	a.Reason, a.RetryAfter = reason(k.blocked(now)), k.wait(r, now, r.Capacity, units)
	return a
}

// charge records units up to the burst.
func (k *Key) charge(r *Rules, units float64, now int64) limiter.Result {
	at, full := k.begin(r, now), r.Rules
	full.Capacity = full.Burst
	added := k.State.Charge(&full, now, at, units)
	k.Rules, k.Clock = full, at
	k.count(r, added)
	return k.changed(r, added, now)
}

// back takes units of a key that was used out by f, and answers how many.
func (k *Key) back(r *Rules, now int64, f func(s algorithm.State, at int64) float64) limiter.Result {
	if k.State == nil {
		return k.changed(r, 0, now)
	}
	k.Clock = max(k.Clock, now)
	units := f(k.State, k.Clock)
	k.count(r, -units)
	return k.changed(r, units, now)
}

// changed answers that units were counted or went back.
func (k *Key) changed(r *Rules, units float64, now int64) limiter.Result {
	a := k.standing(r, now)
	a.Allowed, a.Granted = true, units
	return a
}

// block denies the key for a while, by the denial of that time or, with 0, an operator.
func (k *Key) block(r *Rules, us, now, denied int64) {
	if k.blocked(now) {
		denied = min(denied, k.Denied)
	}
	k.Blocked, k.Denied = max(k.Blocked, k.begin(r, now)+us), denied
}
