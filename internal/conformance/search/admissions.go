package search

import (
	"cmp"
	"slices"

	"github.com/pglimit/pglimit/limiter"
)

// Admission is units that a policy admitted for a key, at a time in microseconds by the
// key's clock.
type Admission struct {
	At    int64
	Units float64
}

// Check sorts the admissions of one key by time, and returns an error if they exceed what p
// may admit.
func Check(p *limiter.Policy, all []Admission) error {
	slices.SortStableFunc(all, func(a, b Admission) int { return cmp.Compare(a.At, b.At) })
	var b Bound
	for _, a := range all {
		if err := b.Admit(a.At, p, a.Units); err != nil {
			return err
		}
	}
	return nil
}
