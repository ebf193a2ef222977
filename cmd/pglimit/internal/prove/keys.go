package prove

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// Kind is a kind of keys. Each has its policies and its bound.
type Kind string

const (
	// Cold keys are exact to the unit: their period is so long that no units come back
	// during the run. A used up key is replaced by a new one, so that the insertion of
	// rows is contended too.
	Cold Kind = "cold"
	// Hot keys get units back all the time.
	Hot Kind = "hot"
	// Plans are cold keys that are requested under several limits, bursts and periods.
	Plans Kind = "plans"
	// Ticks are keys that leak in whole ticks, a few in a run. LeakyBucket only.
	Ticks Kind = "ticks"
	// Aligned are keys that have windows on the clock, a few in a run. FixedWindow only.
	Aligned Kind = "aligned"
	// Calendars are keys that have windows of an hour and longer. FixedWindow only.
	Calendars Kind = "calendar"
	// Sets are cold keys that AllowAll requests, always with the others of their set.
	Sets Kind = "sets"
)

var kinds = []Kind{Cold, Hot, Plans, Ticks, Aligned, Calendars, Sets}

const (
	coldLimit   = 30
	hotLimit    = 100
	smallPlan   = 10 // the larger plan is coldLimit
	hotPeriod   = time.Second
	coldPeriods = 1000 // runs in a cold period
	ticksOfRun  = 3.5  // ticks in a run, and aligned windows: not whole, to be seen if they are not kept
	maxCost     = 3
)

// place is a key, or a set of keys, that is replaced when it is used up.
type place struct {
	kind  Kind
	name  string           // ends with the algorithm: token_bucket and gcra have the same rows
	plans []limiter.Policy // of one name, the largest first; in a set the policy of each key
	round atomic.Int64     // number of the key in this place
}

// newPlaces returns the places for an algorithm in a run. It leaves out the policies that the
// algorithm does not have.
func newPlaces(a limiter.Algorithm, run string, lasts time.Duration) (all []*place) {
	part := max(time.Microsecond, time.Duration(float64(lasts)/ticksOfRun).Truncate(time.Microsecond))
	for _, k := range kinds {
		cold := limiter.Policy{Name: policyName(run, k), Algorithm: a, Limit: coldLimit, Period: max(time.Hour, coldPeriods*lasts).Truncate(time.Microsecond)}
		for i, plans := range plansOf(k, cold, part) {
			plans = slices.DeleteFunc(plans, func(p limiter.Policy) bool { return p.Validate() != nil })
			if len(plans) > 0 {
				all = append(all, &place{kind: k, name: fmt.Sprintf("%s-%d-%s", k, i, a), plans: plans})
			}
		}
	}
	return all
}

// plansOf returns the policies of each place of a kind, as variations of cold. part is the time
// of a tick or window that ends a few times in a run.
func plansOf(k Kind, cold limiter.Policy, part time.Duration) (all [][]limiter.Policy) {
	small, long, low, hot := cold, cold, cold, cold
	small.Limit, low.Burst = smallPlan, smallPlan
	long.Period *= 2
	hot.Limit, hot.Period = hotLimit, hotPeriod
	few := small
	few.Period = part
	switch k {
	case Cold:
		return [][]limiter.Policy{{cold}, {cold}}
	case Hot:
		return [][]limiter.Policy{{hot}, {hot}}
	case Plans:
		return [][]limiter.Policy{{cold, small, long, low}}
	case Ticks:
		few.Tick = part
		return [][]limiter.Policy{{few}}
	case Aligned:
		few.Aligned = true
		return [][]limiter.Policy{{few}}
	case Calendars:
		zones := []string{"Asia/Kathmandu", "Europe/Vienna", "America/New_York", "UTC"}
		anchors := []string{"", "2024-02-29T09:30"} // another one for each second calendar
		for i, c := range limiter.Calendars() {
			p := cold
			p.Period, p.Calendar, p.TimeZone = 0, c, zones[i%len(zones)]
			p.Anchor = anchors[i%len(anchors)]
			all = append(all, []limiter.Policy{p})
		}
		return all
	}
	// The smaller limit is locked last in one set, and first in the other.
	return [][]limiter.Policy{{cold, small}, {small, cold, cold}}
}

// prefix returns the prefix of the names of a run's policies.
func prefix(run string) string { return "prove." + run }

func policyName(run string, k Kind) string { return prefix(run) + "." + string(k) }

// windowed reports whether the keys have windows with fixed edges.
func (p *place) windowed() bool { return p.kind == Aligned || p.kind == Calendars }

// bounding returns the policies that bound each key of the place together.
func (p *place) bounding() []limiter.Policy {
	if p.kind != Sets {
		return p.plans
	}
	return []limiter.Policy{slices.MinFunc(p.plans, func(a, b limiter.Policy) int { return cmp.Compare(a.Limit, b.Limit) })}
}

// draw is a request that was drawn: a call, and the keys that it names.
type draw struct {
	*place
	verbs.Call
	units  float64 // of each key
	keys   []string
	set    string // the set of the keys, or ""
	usedUp func() // call it when nothing is left of the keys
}

// draw draws a request for the place's key under one of its plans, or for all keys of its set
// in any order.
func (p *place) draw() draw {
	round, n := p.round.Load(), float64(1+rand.IntN(maxCost))
	d := draw{place: p, units: n, Call: verbs.Call{Op: "allow"}}
	key := fmt.Sprintf("%s-%d", p.name, round)
	plan := rand.IntN(len(p.plans))
	if p.kind == Sets {
		plan, d.Op, d.set = 0, "all", key
		for _, i := range rand.Perm(len(p.plans)) {
			d.keys = append(d.keys, fmt.Sprintf("%s-%d", key, i))
			d.Requests = append(d.Requests, p.plans[i].Request(d.keys[len(d.keys)-1], n))
		}
	} else {
		d.keys, d.Request = []string{key}, p.plans[plan].Request(key, n)
	}
	d.usedUp = func() {
		if keep := p.kind == Hot || p.kind == Ticks || p.kind == Aligned; !keep && plan == 0 {
			p.round.CompareAndSwap(round, round+1)
		}
	}
	return d
}
