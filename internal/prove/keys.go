package prove

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// kind is a kind of keys, which has its policies and its bound.
type kind string

// Cold keys are exact to the unit: their period is so much longer than the run
// that nothing comes back, and once one is used up the next takes its place, so
// that its first row is fought for too. Hot keys give back all the time. The keys
// of two plans are cold and are asked for under either limit. Held keys are cold,
// and a transaction holds their rows.
const (
	coldKind  kind = "cold"
	hotKind   kind = "hot"
	plansKind kind = "plans"
	heldKind  kind = "held"
)

var kinds = [...]kind{coldKind, hotKind, plansKind, heldKind}

const (
	coldKeys, coldLimit = 2, 30
	hotKeys, hotLimit   = 2, 100
	plansKeys, heldKeys = 1, 1
	smallPlan           = 10 // the larger is coldLimit
	hotPeriod           = time.Second
	coldPeriods         = 1000 // runs in a cold period
)

// group is the keys of one kind.
type group struct {
	plans  []limiter.Policy // of one name, the largest first
	rounds []atomic.Int64   // which key has each place; of hot keys it stays 0
}

func (g *group) largest() limiter.Policy { return g.plans[0] }

// newGroups makes the groups for an algorithm in a run.
func newGroups(a limiter.Algorithm, run string, lasts time.Duration) map[kind]*group {
	cold := limiter.Policy{Algorithm: a, Limit: coldLimit, Period: max(time.Hour, coldPeriods*lasts).Truncate(time.Microsecond)}
	small := cold
	small.Limit = smallPlan
	groups := map[kind]*group{
		coldKind:  {plans: []limiter.Policy{cold}, rounds: make([]atomic.Int64, coldKeys)},
		hotKind:   {plans: []limiter.Policy{{Algorithm: a, Limit: hotLimit, Period: hotPeriod}}, rounds: make([]atomic.Int64, hotKeys)},
		plansKind: {plans: []limiter.Policy{cold, small}, rounds: make([]atomic.Int64, plansKeys)},
		heldKind:  {plans: []limiter.Policy{cold}, rounds: make([]atomic.Int64, heldKeys)},
	}
	for k, g := range groups {
		for i := range g.plans {
			g.plans[i].Name = policyName(run, k)
		}
	}
	return groups
}

func policyName(run string, k kind) string { return "prove." + run + "." + string(k) }

// policyNames are those of all policies of a run.
func policyNames(run string) (names []string) {
	for _, k := range kinds {
		names = append(names, policyName(run, k))
	}
	return names
}

// subject is a key that is counted for.
type subject struct {
	kind kind
	key  string
}

// ask is a key to ask for, and under which policy.
type ask struct {
	subject
	policy limiter.Policy
	usedUp func() // says that the policy has nothing left for the key
}

// pick chooses what a worker asks for next. The worker calls leave when it has
// its answer.
func (c *contest) pick() (s ask, leave func()) {
	const others = coldKeys + hotKeys + plansKeys
	if rand.IntN(others+heldKeys) < heldKeys {
		if leave, ok := c.holding.enter(); ok {
			if row := c.holding.now.Load(); row != nil {
				return row.ask, leave
			}
			return c.of(heldKind), leave
		}
	}
	switch i := rand.IntN(others); {
	case i < coldKeys:
		return c.of(coldKind), nothing
	case i < coldKeys+hotKeys:
		return c.of(hotKind), nothing
	}
	return c.of(plansKind), nothing
}

// of returns a present key of one kind, under one of its plans.
func (c *contest) of(k kind) ask {
	g := c.kinds[k]
	plan, place := rand.IntN(len(g.plans)), rand.IntN(len(g.rounds))
	round := g.rounds[place].Load()
	return ask{subject{k, fmt.Sprintf("%s-%d-%d", k, place, round)}, g.plans[plan], func() {
		if k != hotKind && plan == 0 {
			g.rounds[place].CompareAndSwap(round, round+1)
		}
	}}
}
