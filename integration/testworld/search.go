package testworld

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Search searches each of the bases, as search.Search does, with subjects made by what
// subject returns for a base. Without bases it searches every form of an algorithm.
func Search(t *testing.T, d search.Draw, histories int, subject func(*testing.T) func(*search.History) search.Subject, bases ...limiter.Policy) {
	t.Helper()
	if len(bases) == 0 {
		bases = search.Bases()
	}
	for _, base := range bases {
		t.Run(search.Name(base), func(t *testing.T) {
			t.Parallel()
			d := d
			d.Base = base
			search.Search(t, d, search.Histories(Size(histories, 3*histories)), subject(t))
		})
	}
}

var prefixes atomic.Int64

// NewSubject returns a subject without ways, under unique names, and what its limiters
// have: overrides, and no cache of denials.
func NewSubject(t *testing.T) (search.Subject, *limiter.Config) {
	t.Helper()
	live, err := policies.New()
	if err != nil {
		t.Fatal(err)
	}
	clock := new(conformance.Clock)
	return search.Subject{Clock: clock, Apply: search.Applied(live), Prefix: fmt.Sprintf("h%d.", prefixes.Add(1))},
		&limiter.Config{Now: clock.Now, DisableDenyCache: true, DisableLeases: true, IdempotencyTTL: search.Remember, Policies: live}
}

// SearchBatches searches each of the bases with requests that share statements.
func SearchBatches(t *testing.T, d search.Draw, histories int, newDoor func(*testing.T, limiter.Config) *Gate, bases ...limiter.Policy) {
	t.Helper()
	d.Equal, d.Operations, d.Steps, d.Keys = true, "batch", 6, 3
	Search(t, d, histories, func(t *testing.T) func(*search.History) search.Subject {
		clock := new(conformance.Clock)
		g := newDoor(t, limiter.Config{Now: clock.Now})
		return func(*search.History) search.Subject {
			s, _ := NewSubject(t)
			s.Apply, s.Clock, s.Ways, s.Alike = nil, clock, []search.Way{{Limiter: g}}, search.Rounded
			s.Batch = func(requests []limiter.Request, upTo []bool) []verbs.Answer {
				g.Shut()
				answers := make([]<-chan Answer, len(requests))
				for i, r := range requests {
					answers[i] = g.Send(func() (limiter.Result, error) {
						if upTo[i] {
							return g.AllowUpTo(context.Background(), r.Policy, r.Key, r.Cost)
						}
						return g.Do(context.Background(), r)
					})
				}
				g.Reopen()
				var all []verbs.Answer
				for _, a := range answers {
					got := <-a
					all = append(all, verbs.One(got.Result, got.Err))
				}
				return all
			}
			return s
		}
	}, bases...)
}
