package functions

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestFunctionsDecideAsGo: with the policy in the call, shadows among them.
func TestFunctionsDecideAsGo(t *testing.T) {
	t.Parallel()
	testworld.SearchFunctions(t, search.Draw{Operations: search.Ordinary + " usage usage", Shadows: true}, 15, testworld.Functions{}, search.Variants(10, 10*time.Second)...)
	estimating := search.Draw{Operations: search.Without(search.Estimating, "sweep", "begin", "commit", "rollback"), Keys: 1, Names: 1, Steps: 50, Forward: true}
	testworld.SearchFunctions(t, estimating, 15, testworld.Functions{}, testworld.Holdable()...)
}

// TestFunctionsByNameDecideAsGo: by a policy's name, while policies, overrides and shadows
// change.
func TestFunctionsByNameDecideAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Operations: search.Ordinary + " usage usage override override override override override override", Shadows: true, Names: 1}
	testworld.SearchFunctions(t, d, 15, testworld.Functions{ByName: true})
	d.Leases = true
	testworld.SearchFunctions(t, d, 5, testworld.Functions{ByName: true})
}

// TestFunctionsAllowAllDecidesAsGo: several keys of mixed algorithms at once, among other
// calls. A denied allow_all brings rows up to date, as a denied AllowAll in a transaction does.
func TestFunctionsAllowAllDecidesAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Plain: true, Names: 4, Operations: search.Ordinary + strings.Repeat(" all", 20), Shadows: true}
	testworld.SearchFunctions(t, d, 15, testworld.Functions{ByName: true, Q: testworld.FunctionsPool(t)}, search.Variants(10, 10*time.Second)...)
}

// TestFunctionsAllowAnyDecidesAsGo: one of several pools or several together, of mixed
// algorithms, among other calls.
func TestFunctionsAllowAnyDecidesAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Plain: true, Names: 4, Operations: search.Ordinary + strings.Repeat(" any split", 10), Shadows: true}
	testworld.SearchFunctions(t, d, 15, testworld.Functions{ByName: true, Q: testworld.FunctionsPool(t)}, testworld.Holdable()...)
}

// TestFunctionsReserveAllDecidesAsGo: reservations of several keys, their ends, and idempotency keys of
// sets, among calls of the library under the same keys.
func TestFunctionsReserveAllDecidesAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Plain: true, Names: 3, Operations: "reserve_all reserve_all reserve_all settle_all settle_all cancel_all settle once once all all any split allow charge refund usage block reset"}
	testworld.SearchFunctions(t, d, 15, testworld.Functions{ByName: true, Q: testworld.FunctionsPool(t)}, testworld.Holdable()...)
}

// TestFunctionsEndsAt: a window with the caller's end equals the window that the library
// would have aligned so, in every field, and uses the same row.
func TestFunctionsEndsAt(t *testing.T) {
	t.Parallel()
	aligned := limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 10, Period: 10 * time.Second, Aligned: true}
	testworld.SearchFunctions(t, search.Draw{Operations: search.Simple + " refund refund refund"}, 25, testworld.Functions{EndsAt: true}, aligned)
}
