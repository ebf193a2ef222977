package search

import (
	"math/rand/v2"
	"slices"
	"time"
)

// level takes the floors off most sets of requests. In the others it mostly gives the requests
// for a key the floor of the first.
func (g *drawing) level(asks []Ask) {
	none, floors := g.IntN(3) > 0, map[[2]string]float64{}
	for i := range asks {
		if none {
			asks[i].Floor = 0
		}
		k := [2]string{g.Policies[asks[i].Policy].Name, key(asks[i].Key)}
		if floor, ok := floors[k]; !ok {
			floors[k] = asks[i].Floor
		} else if g.IntN(16) > 0 {
			asks[i].Floor = floor
		}
	}
}

// pools draws requests for one cost, mostly each for another row.
func (g *drawing) pools(s *Step) {
	seen := map[[2]string]bool{}
	for range 1 + g.IntN(4) {
		a := g.ask()
		k := [2]string{g.Policies[a.Policy].Name, key(a.Key)}
		if seen[k] && g.IntN(16) > 0 {
			continue
		}
		seen[k] = true
		if s.Asks = append(s.Asks, a); g.IntN(16) > 0 {
			s.Asks[len(s.Asks)-1].Units = s.Asks[0].Units
		}
	}
}

// reserveAll draws a reservation of several keys, or the end of a late one.
func (g *drawing) reserveAll(s *Step) {
	for i := len(g.History.Steps) - 1; i >= 0 && s.Op != "reserve_all"; i-- {
		if g.History.Steps[i].Op == "reserve_all" && g.IntN(3) > 0 {
			s.Of = i
			return
		}
	}
	s.Op, s.For = "reserve_all", []time.Duration{time.Second, time.Hour}[g.IntN(2)]
	g.pools(s)
	g.once(s)
}

// once gives some sets of requests an idempotency key, mostly those of an earlier step with its
// key. It draws from random numbers of the moment, so that all else of a history stays as it is.
func (g *drawing) once(s *Step) {
	own := rand.New(rand.NewPCG(uint64(g.at), uint64(s.Number)))
	if !slices.Contains(g.all, "once") || own.IntN(3) > 0 {
		return
	}
	seen := map[[2]string]bool{}
	s.Idempotency = []string{"x", "w", "w"}[own.IntN(3)]
	s.Asks = slices.DeleteFunc(s.Asks, func(a Ask) bool {
		k := [2]string{g.Policies[a.Policy].Name, key(a.Key)}
		defer func() { seen[k] = true }()
		return seen[k] && own.IntN(16) > 0
	})
	if before, ok := g.sets[s.Op]; ok && own.IntN(3) > 0 {
		s.Asks, s.Idempotency = before.Asks, before.Idempotency
	}
	g.sets[s.Op] = *s
}
