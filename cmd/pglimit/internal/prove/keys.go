package contest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// kind is a kind of keys. Each kind has its policies and its bound.
type kind string

const (
	// Cold keys are exact to the unit: their period is so long that no units come back
	// during the run. A used up key is replaced by a new one, so that the insertion of
	// rows is contended too.
	coldKind kind = "cold"
	// Hot keys get units back all the time.
	hotKind kind = "hot"
	// Keys of plans are cold, and are requested under several limits, bursts and periods.
	plansKind kind = "plans"
	// A transaction locks the rows of held keys, which are cold.
	heldKind kind = "held"
	// Keys of ticks leak in whole ticks, a few in a run. LeakyBucket only.
	ticksKind kind = "ticks"
	// Aligned keys have windows on the clock, a few in a run. FixedWindow only.
	alignedKind kind = "aligned"
	// Keys of calendars have windows of an hour and longer. One may end in a run, and
	// then the bound is that of both. FixedWindow only.
	calendarKind kind = "calendar"
	// Keys of sets are cold, and are requested by AllowAll with the others of their set.
	setsKind kind = "sets"
	// Reserved keys are cold, and are requested by Reserve. Some reservations are spent,
	// and some give all back.
	reservedKind kind = "reserved"
)

// kinds has each kind with the number of its keys, or sets of keys, at one time.
var kinds = []struct {
	kind   kind
	places int
}{{coldKind, 2}, {hotKind, 2}, {plansKind, 1}, {heldKind, 1}, {ticksKind, 1}, {alignedKind, 1}, {calendarKind, 4}, {setsKind, 2}, {reservedKind, 2}}

const (
	coldLimit   = 30
	hotLimit    = 100
	smallPlan   = 10 // the larger plan is coldLimit
	hotPeriod   = time.Second
	coldPeriods = 1000 // runs in a cold period
	ticksOfRun  = 3.5  // ticks in a run, and aligned windows: not whole, to be seen if they are not kept

	sharedMember = 2 // of a set: the key that is requested alone too

	// reservedPeriod is so long that the leak of all open reservations together is a
	// small part of a unit.
	reservedPeriod = 10 * 365 * 24 * time.Hour
)

// groups are the keys of a contest.
type groups map[kind][]*place

// place is a key, or a set of keys, that is replaced when it is used up.
type place struct {
	name  string           // ends with the algorithm: token_bucket and gcra have the same rows
	plans []limiter.Policy // of one name, the largest first; in a set the policy of each key
	round atomic.Int64     // number of the key in this place
	keep  bool             // the key is never replaced
}

// newGroups returns the groups for an algorithm in a run.
func newGroups(a limiter.Algorithm, run string, lasts time.Duration) groups {
	cold := limiter.Policy{Algorithm: a, Limit: coldLimit, Period: max(time.Hour, coldPeriods*lasts).Truncate(time.Microsecond)}
	part := max(time.Microsecond, time.Duration(float64(lasts)/ticksOfRun).Truncate(time.Microsecond))
	all := groups{}
	for _, k := range kinds {
		for i := range k.places {
			plans := plansOf(k.kind, i, cold, part)
			for j := range plans {
				plans[j].Name = policyName(run, k.kind)
			}
			if plans != nil {
				keep := k.kind == hotKind || k.kind == ticksKind || k.kind == alignedKind
				all[k.kind] = append(all[k.kind], &place{name: fmt.Sprintf("%s-%d-%s", k.kind, i, a), plans: plans, keep: keep})
			}
		}
	}
	return all
}

// plansOf returns the policies of a place, or nil if the algorithm has no such kind. part
// is the time of a tick or window that ends a few times in a run.
func plansOf(k kind, place int, cold limiter.Policy, part time.Duration) []limiter.Policy {
	small, long, reserved := cold, cold, cold
	small.Limit = smallPlan
	long.Period *= 2
	reserved.Period = reservedPeriod
	hot := limiter.Policy{Algorithm: cold.Algorithm, Limit: hotLimit, Period: hotPeriod}
	switch k {
	case hotKind:
		return []limiter.Policy{hot}
	case plansKind:
		plans := []limiter.Policy{cold, small, long}
		if bucket(cold.Algorithm) {
			low := cold
			low.Burst = smallPlan
			plans = append(plans, low)
		}
		return plans
	case ticksKind:
		if cold.Algorithm != limiter.LeakyBucket {
			return nil
		}
		hot.Limit, hot.Period, hot.Tick = smallPlan, part, part
		return []limiter.Policy{hot}
	case alignedKind:
		if cold.Algorithm != limiter.FixedWindow {
			return nil
		}
		hot.Limit, hot.Period, hot.Aligned = smallPlan, part, true
		return []limiter.Policy{hot}
	case calendarKind:
		if cold.Algorithm != limiter.FixedWindow {
			return nil
		}
		at := [...]struct {
			calendar limiter.Calendar
			zone     string
		}{{limiter.Hour, "Asia/Kathmandu"}, {limiter.Day, "Europe/Vienna"}, {limiter.Week, "America/New_York"}, {limiter.Month, "UTC"}}[place]
		return []limiter.Policy{{Algorithm: cold.Algorithm, Limit: coldLimit, Calendar: at.calendar, TimeZone: at.zone}}
	case setsKind: // the smaller limit is locked last in one set, and first in the other
		if place == 0 {
			return []limiter.Policy{cold, small}
		}
		return []limiter.Policy{small, cold, cold}
	case reservedKind:
		if cold.Algorithm == limiter.LeakyBucketQueue {
			return nil
		}
		return []limiter.Policy{reserved}
	}
	return []limiter.Policy{cold}
}

func bucket(a limiter.Algorithm) bool {
	return a == limiter.LeakyBucket || a == limiter.LeakyBucketQueue || a == limiter.TokenBucket || a == limiter.GCRA
}

// Prefix returns the prefix of the names of a run's policies.
func Prefix(run string) string { return "prove." + run }

func policyName(run string, k kind) string { return Prefix(run) + "." + string(k) }

// PolicyNames returns the names of all policies of a run.
func PolicyNames(run string) (names []string) {
	for _, k := range kinds {
		names = append(names, policyName(run, k.kind))
	}
	return names
}

// subject is a key with its kind.
type subject struct {
	kind kind
	key  string
}

// request is a key to request, and its policy.
type request struct {
	subject
	policy limiter.Policy
	plans  []limiter.Policy // all under which the key is requested
	place  *place
	usedUp func() // call it when the policy has nothing left for the key
}

// free returns the number of places whose rows are not locked by a transaction.
func (all groups) free() (n int) {
	for k, places := range all {
		if k != heldKind {
			n += len(places)
		}
	}
	return n
}

// pick returns a key of any kind whose row is not locked by a transaction.
func (all groups) pick() request {
	i := rand.IntN(all.free())
	for _, k := range kinds {
		if k.kind == heldKind {
			continue
		}
		if places := all[k.kind]; i < len(places) {
			return places[i].request(k.kind)
		}
		i -= len(all[k.kind])
	}
	panic("unreachable")
}

// of returns a current key of one kind, under one of its plans.
func (all groups) of(k kind) request {
	return all[k][rand.IntN(len(all[k]))].request(k)
}

// request returns a request for the place's key under one of its plans. In a set it is for
// the first key.
func (p *place) request(k kind) request {
	plan, round := 0, p.round.Load()
	if k != setsKind {
		plan = rand.IntN(len(p.plans))
	}
	return request{subject{k, fmt.Sprintf("%s-%d", p.name, round)}, p.plans[plan], p.plans, p, func() {
		if !p.keep && plan == 0 {
			p.round.CompareAndSwap(round, round+1)
		}
	}}
}

// members returns a request for each key of a set. Only the last of three is requested
// alone too. The others are admitted no more than the smallest limit of the set.
func (r request) members() (all []request) {
	least := slices.MinFunc(r.plans, func(p, q limiter.Policy) int { return cmp.Compare(p.Limit, q.Limit) })
	for i, p := range r.plans {
		one := r
		one.key, one.policy, one.plans = fmt.Sprintf("%s-%d", r.key, i), p, []limiter.Policy{least}
		if i == sharedMember {
			one.plans[0] = p
		}
		all = append(all, one)
	}
	return all
}
