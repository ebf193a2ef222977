package search

import (
	"fmt"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/janitor"
)

// TestStatementsAdmitNoMoreThanTheirBound: random histories of all verbs over statements,
// with a janitor that sweeps in between.
func TestStatementsAdmitNoMoreThanTheirBound(t *testing.T) {
	t.Parallel()
	testworld.Search(t, search.Draw{}, 20, func(t *testing.T) func(*search.History) search.Subject {
		pool := testworld.NewPool(t)
		clock := new(conformance.Clock)
		j := testworld.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
		t.Cleanup(func() {
			if swept := j.Removed(); swept.Total() == 0 || swept.Kept == 0 {
				t.Errorf("the sweeps deleted %d and kept %d rows: that proves little", swept.Total(), swept.Kept)
			}
		})
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			s.Clock, config.Now = clock, clock.Now
			s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
			s.Sweep = func() error {
				removed, err := j.Sweep(t.Context())
				if err == nil && removed.HeldElsewhere {
					err = fmt.Errorf("another janitor sweeps: %+v", removed)
				}
				return err
			}
			return s
		}
	})
}
