package search

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// TestModelKnowsWhatWasRolledBack: an undo of a request that was rolled back stays in the
// model when another rollback makes the model again.
func TestModelKnowsWhatWasRolledBack(t *testing.T) {
	t.Parallel()
	h := &History{Keys: 1, Policies: []limiter.Policy{{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: time.Hour}}}
	e := newEquality(newSide(Memory(new(conformance.Clock)), h), h)
	calls := 0
	do := func(s *Step) verbs.Answer {
		calls++
		s.Number = calls
		e.done = append(e.done, moment{s, 0})
		return e.model.do(s)
	}
	do(&Step{Op: "allow", Ask: Ask{Units: 4}})
	before := len(e.done)
	undone := &Step{Op: "allow", Ask: Ask{Units: 2}}
	do(undone)
	e.rollBack(before)
	do(&Step{Op: "undo", Ask: Ask{Units: 1}, Of: undone.Number})
	spent := func() float64 { return e.model.do(&Step{Op: "usage"}).Usage.Spent }
	want := spent()
	e.rollBack(len(e.done))
	if got := spent(); got != want || want == 4 {
		t.Errorf("%v units spent, were %v", got, want)
	}
}

// TestGivenBackIsNoFuller: a store with fewer reservations than the model may have given back
// expired ones, and then has no more units in use and leaves no fewer.
func TestGivenBackIsNoFuller(t *testing.T) {
	t.Parallel()
	x := Memory(new(conformance.Clock))
	x.Sweep = func() error { return nil }
	e := newEquality(newSide(x, &History{}), &History{})
	usage := func(reservations int, level, remaining float64) verbs.Answer {
		return verbs.Answer{Usage: limiter.Usage{Reservations: reservations, Result: limiter.Result{Level: level, Remaining: remaining}}}
	}
	want := usage(2, 6, 4)
	for name, c := range map[string]struct {
		got  verbs.Answer
		fits bool
	}{
		"as full":            {usage(1, 6, 4), true},
		"less full":          {usage(1, 5, 5), true},
		"rounded":            {usage(1, 6+1e-12, 3), true},
		"a higher level":     {usage(1, 6.5, 4), false},
		"less remaining":     {usage(1, 5, 3), false},
		"as many, less full": {usage(2, 5, 5), false},
		"more reservations":  {usage(3, 6, 4), true}, // forgotten ones are not compared
	} {
		if err := e.compare(&Step{Op: "usage"}, c.got, want); (err == nil) != c.fits {
			t.Errorf("%s: %v", name, err)
		}
	}
}
