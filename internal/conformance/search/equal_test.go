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
