package search

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Steps is the number of steps of a history.
const Steps = 40

// Variants returns every algorithm in each of its forms but calendars.
func Variants(limit float64, period time.Duration) (all []limiter.Policy) {
	add := func(p limiter.Policy) {
		p.Name, p.Limit, p.Period = fmt.Sprintf("variant-%d", len(all)), limit, period
		all = append(all, p)
	}
	for _, a := range limiter.Algorithms() {
		add(limiter.Policy{Algorithm: a})
		switch a {
		case limiter.LeakyBucket:
			add(limiter.Policy{Algorithm: a, Tick: period / 4})
		case limiter.FixedWindow:
			add(limiter.Policy{Algorithm: a, Aligned: true})
		}
	}
	return all
}

// Bases returns the variants to search.
func Bases() []limiter.Policy {
	all := Variants(10, 10*time.Second)
	for _, c := range limiter.Calendars() {
		all = append(all, limiter.Policy{Algorithm: limiter.FixedWindow, Calendar: c, TimeZone: "Europe/Vienna"})
	}
	return all
}

// Name returns the name of a variant.
func Name(p limiter.Policy) string {
	switch {
	case p.Tick != 0:
		return string(p.Algorithm) + " in ticks"
	case p.Aligned:
		return string(p.Algorithm) + " aligned"
	case p.Calendar != "":
		return string(p.Algorithm) + " by " + string(p.Calendar)
	}
	return string(p.Algorithm)
}

// Histories returns the number of histories for each form of an algorithm, of
// PGLIMIT_SEARCH_HISTORIES or else a few.
func Histories(few int) int { return number("PGLIMIT_SEARCH_HISTORIES", few) }

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// Search runs that many random histories of a variant, each on its own subject, and logs
// what they did. PGLIMIT_SEARCH_SEED selects others. It fails t with the shortest history
// that it finds to exceed the bound.
func Search(t *testing.T, base limiter.Policy, histories int, memory bool, subject func(*History) Subject) {
	t.Helper()
	seed := uint64(number("PGLIMIT_SEARCH_SEED", 1))
	admitted, gaveBack := 0, 0
	for n := range histories {
		h := draw(rand.New(rand.NewPCG(seed, uint64(n))), base, Steps, memory)
		s := subject(h)
		r, err := s.Run(h)
		admitted, gaveBack = admitted+r.Admitted, gaveBack+r.GaveBack
		if err == nil {
			continue
		}
		h, err = shrink(h, err, subject)
		t.Fatalf("seed %d, history %d of %s, shrunk to %d steps:\n%s%v", seed, n, Name(base), len(h.Steps), h, err)
	}
	t.Logf("seed %d: %d histories, %d steps, %d admissions, %d given back", seed, histories, histories*Steps, admitted, gaveBack)
	if admitted < 4*histories || base.Algorithm != limiter.LeakyBucketQueue && gaveBack < histories/3 {
		t.Errorf("%d admissions and %d given back in %d histories: that proves little", admitted, gaveBack, histories)
	}
}

// shrink leaves out steps, and moves of the clock, while the history still fails.
func shrink(h *History, err error, subject func(*History) Subject) (*History, error) {
	fails := func(c *History) bool {
		_, again := subject(c).Run(c)
		if again != nil {
			h, err = c, again
		}
		return again != nil
	}
	for before := -1; before != len(h.Steps); {
		before = len(h.Steps)
		for size := max(1, len(h.Steps)/2); size > 0; size /= 2 {
			for i := 0; i+size <= len(h.Steps); {
				c := *h
				c.Steps = slices.Clone(h.Steps)
				if i+size < len(c.Steps) { // the others keep their times
					for _, s := range h.Steps[i : i+size] {
						c.Steps[i+size].Moves += s.Moves
					}
				}
				c.Steps = slices.Delete(c.Steps, i, i+size)
				if !fails(&c) {
					i += size
				}
			}
		}
		for i := range h.Steps {
			c := *h
			c.Steps = slices.Clone(h.Steps)
			c.Steps[i].Moves = 0
			if h.Steps[i].Moves != 0 {
				fails(&c)
			}
		}
	}
	return h, err
}
