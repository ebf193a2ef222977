package prove

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/ledger"
	"github.com/pglimit/pglimit/limiter"
)

// Kind is a kind of keys. Each has its policies and its bound.
type Kind string

// The kinds of keys.
const (
	Cold      Kind = "cold"     // get no units back in a run; a used up one is replaced, so that inserts of rows contend too
	Hot       Kind = "hot"      // get units back all the time
	Plans     Kind = "plans"    // cold keys under several limits, bursts and periods
	Ticks     Kind = "ticks"    // leak in whole ticks, a few in a run; LeakyBucket only
	Aligned   Kind = "aligned"  // have windows on the clock, a few in a run; FixedWindow only
	Calendars Kind = "calendar" // have windows of an hour and longer; FixedWindow only
	Sets      Kind = "sets"     // cold keys that AllowAll requests, always with the others of their set
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
	cold := limiter.Policy{Algorithm: a, Limit: coldLimit, Period: max(time.Hour, coldPeriods*lasts).Truncate(time.Microsecond)}
	hot, small, long, low := cold, cold, cold, cold
	hot.Limit, hot.Period, small.Limit, long.Period, low.Burst = hotLimit, hotPeriod, smallPlan, 2*cold.Period, smallPlan
	tick := small
	tick.Period = max(time.Microsecond, time.Duration(float64(lasts)/ticksOfRun).Truncate(time.Microsecond))
	aligned := tick
	tick.Tick, aligned.Aligned = tick.Period, true
	plansOf := map[Kind][][]limiter.Policy{
		Cold: {{cold}, {cold}}, Hot: {{hot}, {hot}}, Plans: {{cold, small, long, low}}, Ticks: {{tick}}, Aligned: {{aligned}},
		Sets: {{cold, small}, {small, cold, cold}}, // the smaller limit is locked last in one, and first in the other
	}
	zones := []string{"Asia/Kathmandu", "Europe/Vienna", "America/New_York", "UTC"}
	for i, c := range limiter.Calendars() {
		p := cold
		p.Period, p.Calendar, p.TimeZone, p.Anchor = 0, c, zones[i%len(zones)], []string{"", "2024-02-29T09:30"}[i%2]
		plansOf[Calendars] = append(plansOf[Calendars], []limiter.Policy{p})
	}
	for _, k := range kinds {
		for i, plans := range plansOf[k] {
			for n := range plans {
				plans[n].Name = policyName(run, k)
			}
			if plans = slices.DeleteFunc(plans, func(p limiter.Policy) bool { return p.Validate() != nil }); len(plans) > 0 {
				all = append(all, &place{kind: k, name: fmt.Sprintf("%s-%d-%s", k, i, a), plans: plans})
			}
		}
	}
	return all
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
		plan, d.Op = 0, "all"
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

// account has the units that callers got of a key, or of one of its windows with fixed edges.
type account struct {
	*place
	ledger.Account
	fault string // the first, or ""
}

// wrong records a fault, the first of a key only.
func (a *account) wrong(format string, args ...any) {
	a.fault = cmp.Or(a.fault, fmt.Sprintf(format, args...))
}

// look judges an answer for the key by itself.
func (a *account) look(p limiter.Policy, r limiter.Result) {
	switch {
	case a.kind == Ticks && math.Abs(r.Level-math.Round(r.Level)) > bound.Slack:
		a.wrong("the answer at %s counts %.3f units, but only whole units leak in a tick", stamp(r.At), r.Level)
	case a.windowed() && r.Level > 0:
		_, ends := bound.Window(verbs.Plan(&p), r.At)
		if end := r.At.Add(r.ResetAfter); !end.Equal(ends) {
			a.wrong("the answer at %s ends its window at %s instead of %s", stamp(r.At), stamp(end), stamp(ends))
		}
	}
}

// allowed returns the most units that the key's policies admit between two times.
func (a *account) allowed(from, to time.Time) float64 {
	if a.windowed() {
		return a.plans[0].Limit
	}
	var plans []bound.Plan
	for _, p := range a.bounding() {
		plans = append(plans, verbs.Plan(&p))
	}
	most := bound.Allowed(plans, from, to)
	if a.kind != Hot {
		most = math.Floor(most + bound.Slack)
	}
	return most
}

// stamp formats a time for a fault.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }
