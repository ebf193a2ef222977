package functions

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestFunctionsDecideAsGo: with the policy in the call, shadows among them.
func TestFunctionsDecideAsGo(t *testing.T) {
	t.Parallel()
	bed.SearchFunctions(t, search.Draw{Operations: search.Ordinary + " usage usage", Shadows: true}, 15, bed.Functions{}, search.Variants(10, 10*time.Second)...)
}

// TestFunctionsByNameDecideAsGo: by a policy's name, while policies, overrides and shadows
// change.
func TestFunctionsByNameDecideAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Operations: search.Ordinary + " usage usage override override override override override override", Shadows: true, Names: 1}
	bed.SearchFunctions(t, d, 15, bed.Functions{ByName: true})
	d.Leases = true
	bed.SearchFunctions(t, d, 5, bed.Functions{ByName: true})
}

// TestFunctionsAllowAllDecidesAsGo: several keys of mixed algorithms at once, among other
// calls. A denied allow_all brings rows up to date, as a denied AllowAll in a transaction does.
func TestFunctionsAllowAllDecidesAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Plain: true, Names: 4, Operations: search.Ordinary + strings.Repeat(" all", 20), Shadows: true}
	bed.SearchFunctions(t, d, 15, bed.Functions{ByName: true, Q: bed.FunctionsPool(t)}, search.Variants(10, 10*time.Second)...)
}

// TestFunctionsEndsAt: a window with the caller's end equals the window that the library
// would have aligned so, in every field, and uses the same row.
func TestFunctionsEndsAt(t *testing.T) {
	t.Parallel()
	aligned := limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 10, Period: 10 * time.Second, Aligned: true}
	bed.SearchFunctions(t, search.Draw{Operations: search.Simple + " refund refund refund"}, 25, bed.Functions{EndsAt: true}, aligned)
}
