package limiter_test

import (
	"testing"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestMemoryAdmitsNoMoreThanItsBound: random histories of all verbs on memory limiters,
// without transactions, that forget idle keys in between.
func TestMemoryAdmitsNoMoreThanItsBound(t *testing.T) {
	t.Parallel()
	for _, base := range search.Bases() {
		t.Run(search.Name(base), func(t *testing.T) {
			t.Parallel()
			search.Search(t, base, search.Histories(500), true, func(h *search.History) search.Subject {
				policies, err := limiter.NewPolicies()
				if err != nil {
					t.Fatal(err)
				}
				clock := new(conformance.Clock)
				l, forget := limiter.NewForgetting(&limiter.Config{
					Now: clock.Now, MaxKeys: h.MaxKeys, DisableTimeout: true, IdempotencyTTL: search.Remember, Policies: policies,
				})
				return search.Subject{Limiter: l, Policies: policies, Sweep: func() error { forget(); return nil }, Clock: clock}
			})
		})
	}
}
