package search

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestStatementsAdmitNoMoreThanTheirBound: random histories of all verbs over statements,
// with a janitor that sweeps in between. search.Histories reads their number from the
// environment.
func TestStatementsAdmitNoMoreThanTheirBound(t *testing.T) {
	t.Parallel()
	for _, base := range search.Bases() {
		t.Run(search.Name(base), func(t *testing.T) {
			t.Parallel()
			pool := bed.NewPool(t)
			clock := new(conformance.Clock)
			j := bed.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
			var prefixes atomic.Int64
			sweep := func() error {
				removed, err := j.Sweep(t.Context())
				if err == nil && removed.HeldElsewhere {
					err = fmt.Errorf("another janitor sweeps: %+v", removed)
				}
				return err
			}
			search.Search(t, base, search.Histories(60), false, func(*search.History) search.Subject {
				policies, err := limiter.NewPolicies()
				if err != nil {
					t.Fatal(err)
				}
				l := bed.NewLimiter(t, pool, &limiter.Config{
					Now: clock.Now, DisableDenyCache: true, IdempotencyTTL: search.Remember, Policies: policies,
				})
				return search.Subject{
					Limiter: l, Policies: policies, Begin: pool.Begin, Sweep: sweep, Clock: clock, Prefix: fmt.Sprintf("h%d.", prefixes.Add(1)),
				}
			})
			if swept := j.Removed(); swept.Total() == 0 || swept.Kept == 0 {
				t.Errorf("the sweeps deleted %d and kept %d rows: that proves little", swept.Total(), swept.Kept)
			}
		})
	}
}
