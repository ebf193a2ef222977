package contest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// kind is a kind of keys. Each kind has its policies and its bound.
type kind string

// Cold keys are exact to the unit: their period is so long that no units come back
// during the run. A used up key is replaced by a new one, so that the insertion of rows
// is contended too. Hot keys get units back all the time. The keys of two plans are cold
// and are requested under either limit. Held keys are cold, and a transaction locks
// their rows.
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
	freeKeys            = coldKeys + hotKeys + plansKeys
	smallPlan           = 10 // the larger plan is coldLimit
	hotPeriod           = time.Second
	coldPeriods         = 1000 // runs in a cold period
)

// groups are the keys of a contest.
type groups map[kind]*group

// group is the keys of one kind.
type group struct {
	plans  []limiter.Policy // of one name, the largest first
	rounds []atomic.Int64   // number of the key in each place; always 0 for hot keys
}

func (g *group) largest() limiter.Policy { return g.plans[0] }

// newGroups returns the groups for an algorithm in a run.
func newGroups(a limiter.Algorithm, run string, lasts time.Duration) groups {
	cold := limiter.Policy{Algorithm: a, Limit: coldLimit, Period: max(time.Hour, coldPeriods*lasts).Truncate(time.Microsecond)}
	small := cold
	small.Limit = smallPlan
	all := groups{
		coldKind:  {plans: []limiter.Policy{cold}, rounds: make([]atomic.Int64, coldKeys)},
		hotKind:   {plans: []limiter.Policy{{Algorithm: a, Limit: hotLimit, Period: hotPeriod}}, rounds: make([]atomic.Int64, hotKeys)},
		plansKind: {plans: []limiter.Policy{cold, small}, rounds: make([]atomic.Int64, plansKeys)},
		heldKind:  {plans: []limiter.Policy{cold}, rounds: make([]atomic.Int64, heldKeys)},
	}
	for k, g := range all {
		for i := range g.plans {
			g.plans[i].Name = policyName(run, k)
		}
	}
	return all
}

// Prefix returns the prefix of the names of a run's policies.
func Prefix(run string) string { return "prove." + run }

func policyName(run string, k kind) string { return Prefix(run) + "." + string(k) }

// PolicyNames returns the names of all policies of a run.
func PolicyNames(run string) (names []string) {
	for _, k := range kinds {
		names = append(names, policyName(run, k))
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
	usedUp func() // call it when the policy has nothing left for the key
}

// pick returns a key of any kind whose row is not locked by a transaction.
func (all groups) pick() request {
	switch i := rand.IntN(freeKeys); {
	case i < coldKeys:
		return all.of(coldKind)
	case i < coldKeys+hotKeys:
		return all.of(hotKind)
	}
	return all.of(plansKind)
}

// of returns a current key of one kind, under one of its plans.
func (all groups) of(k kind) request {
	g := all[k]
	plan, place := rand.IntN(len(g.plans)), rand.IntN(len(g.rounds))
	round := g.rounds[place].Load()
	return request{subject{k, fmt.Sprintf("%s-%d-%d", k, place, round)}, g.plans[plan], func() {
		if k != hotKind && plan == 0 {
			g.rounds[place].CompareAndSwap(round, round+1)
		}
	}}
}
