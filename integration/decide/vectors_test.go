package decide

import (
	"maps"
	"slices"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideVectors: each driver makes the decisions of testdata/vectors.
func TestDecideVectors(t *testing.T) {
	t.Parallel()
	for i := range 1 + len(testworld.SQLDrivers) {
		all := testworld.Drivers(t, testworld.NewDatabase(t)) // the vectors' policies have the same names
		name := slices.Sorted(maps.Keys(all))[i]
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, "../testdata/repository/testdata/vectors", func(_ *testing.T, clock *conformance.Clock) *limiter.Limiter {
				return all[name](&limiter.Config{Now: clock.Now, DisableDenyCache: true})
			})
		})
	}
}
