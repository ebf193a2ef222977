package search

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

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

// Search runs random histories, each on its own subject, and logs what they did.
// PGLIMIT_SEARCH_SEED selects others. It fails t with the shortest history that it finds to
// fail a judge.
func Search(t *testing.T, d Draw, histories int, subject func(*History) Subject) {
	t.Helper()
	seed := uint64(number("PGLIMIT_SEARCH_SEED", 1))
	admitted, gaveBack, denied := 0, 0, 0
	for n := range histories {
		h := d.draw(rand.New(rand.NewPCG(seed, uint64(n))))
		r, err := d.run(h, subject(h))
		if err == nil {
			admitted, gaveBack, denied = admitted+r.admitted, gaveBack+r.gaveBack, denied+r.denied
			continue
		}
		h, err = d.shrink(h, err, subject)
		t.Fatalf("seed %d, history %d of %s, shrunk to %d steps:\n%s%v", seed, n, Name(d.Base), len(h.Steps), h, err)
	}
	t.Logf("seed %d: %d histories, %d admissions, %d denials, %d given back", seed, histories, admitted, denied, gaveBack)
	if admitted < 4*histories || denied < histories || d.Operations == "" && d.bound() && d.Base.Algorithm != limiter.LeakyBucketQueue && gaveBack < histories/3 {
		t.Errorf("%d admissions, %d denials and %d given back in %d histories: that proves little", admitted, denied, gaveBack, histories)
	}
}

// bound reports whether the bound judges.
func (d *Draw) bound() bool {
	return !d.Shadows && len(d.Zones) == 0 && around[d.Base.Algorithm] == "" && d.Base.Algorithm != limiter.Balance
}

// ran is what a history did.
type ran struct{ admitted, denied, gaveBack int }

// run makes the history's calls. It returns an error if a judge does.
func (d *Draw) run(h *History, s Subject) (r ran, err error) {
	x := newSide(s, h)
	var books *account
	var model *equality
	if d.bound() {
		books = newAccount(h)
	}
	if d.Equal {
		model = newEquality(x, h)
	}
	at, floor, retry := h.Start, int64(0), int64(0)
	defer func() {
		for len(x.open) > 0 {
			err = errors.Join(err, x.end(false).Err)
		}
		if books != nil {
			r.gaveBack = books.gaveBack
		}
	}()
	for i := range h.Steps {
		step := &h.Steps[i]
		switch {
		case !step.Retry:
			at = max(0, at+step.Moves, floor)
		case retry > at:
			at = max(at, retry+step.Moves)
		}
		s.Clock.Set(at)
		if books != nil {
			books.before(s.Clock.Now().UnixMicro())
		}
		if books != nil && books.vague(step) || model != nil && model.differs(step) {
			continue
		}
		if s.Before != nil {
			s.Before(step)
		}
		a := x.do(step)
		if now := s.Clock.Now().Sub(conformance.Epoch).Microseconds(); now != at { // the subject was stopped meanwhile
			if at = now; books != nil {
				books.before(s.Clock.Now().UnixMicro())
			}
		}
		if a.Idle {
			continue
		}
		if step.Op == "sweep" { // what it deleted is not known before it
			floor = at
		}
		for _, one := range a.PerRequest {
			switch {
			case a.Err != nil:
			case one.Granted > 0:
				r.admitted++
			case !one.Allowed:
				r.denied++
				if retry = 0; one.RetryAfter != limiter.Never {
					retry = one.At.Add(one.RetryAfter).Sub(conformance.Epoch).Microseconds()
				}
			}
		}
		if books != nil {
			err = books.judge(step, a)
		}
		if model != nil && err == nil {
			err = model.judge(step, at, a)
		}
		if err != nil {
			return r, fmt.Errorf("step %d, %s: %w", step.Number, step.Op, err)
		}
	}
	if model != nil && len(x.open) == 0 {
		err = model.end()
	}
	return r, err
}

// shrink leaves out steps, and moves of the clock, while the history still fails.
func (d *Draw) shrink(h *History, err error, subject func(*History) Subject) (*History, error) {
	fails := func(c *History) bool {
		_, again := d.run(c, subject(c))
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
