package functions

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestFunctionsDecideAsGo: with the policy in the call, shadows among them.
func TestFunctionsDecideAsGo(t *testing.T) {
	t.Parallel()
	bed.SearchFunctions(t, search.Draw{Operations: search.Ordinary, Shadows: true}, 15, bed.Functions{}, search.Variants(10, 10*time.Second)...)
}

// TestFunctionsByNameDecideAsGo: by a policy's name, while policies, overrides and shadows
// change.
func TestFunctionsByNameDecideAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Operations: search.Ordinary + " override override override override override override", Shadows: true, Names: 1}
	bed.SearchFunctions(t, d, 15, bed.Functions{ByName: true})
}

// TestFunctionsEndsAt: a window with the caller's end equals the window that the library
// would have aligned so, in every field, and uses the same row.
func TestFunctionsEndsAt(t *testing.T) {
	t.Parallel()
	aligned := limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 10, Period: 10 * time.Second, Aligned: true}
	bed.SearchFunctions(t, search.Draw{Operations: search.Simple + " refund refund refund"}, 25, bed.Functions{EndsAt: true}, aligned)
}
