package limiter_test

import (
	"slices"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestAnyBack: what is given back goes to the pool that gave last, then to the one before, and never more
// than they gave; what was not counted goes nowhere. After it has been refunded the first pool has what
// was spent.
func TestAnyBack(t *testing.T) {
	t.Parallel()
	ctx, l := t.Context(), limiter.NewMemory(nil)
	pools := []limiter.Request{window("a", 3).Request("k", 8), window("b", 2).Request("k", 8), window("c", 10).Request("k", 8), window("d", 10).Request("k", 8)}
	given := must.OK(l.AllowAnySplit(ctx, pools...))(t)
	for units, want := range map[float64][]float64{-1: {0, 0, 0, 0}, 0: {0, 0, 0, 0}, 2: {0, 0, 2, 0}, 3: {0, 0, 3, 0}, 4.5: {0, 1.5, 3, 0}, 6: {1, 2, 3, 0}, 99: {3, 2, 3, 0}} {
		if got := given.Back(units); !slices.Equal(got, want) {
			t.Errorf("of %v: %v, want %v", units, got, want)
		}
	}
	for i, units := range given.Back(6) {
		if units > 0 {
			must.OK(l.Refund(ctx, pools[i].Policy, pools[i].Key, units))(t)
		}
	}
	for i, want := range []float64{2, 0, 0, 0} {
		if r := must.OK(l.Check(ctx, pools[i].Policy, "k", 0))(t); r.Level != want {
			t.Errorf("pool %d: %v in use, want %v", i, r.Level, want)
		}
	}
	given.PerRequest[2].Shadowed, given.PerRequest[1].Source = true, limiter.SourceOverride
	if got := given.Back(6); !slices.Equal(got, []float64{1, 0, 0, 0}) {
		t.Errorf("of pools that count nothing: %v", got)
	}
	if denied := must.OK(l.AllowAny(ctx, window("e", 1).Request("k", 2)))(t); !slices.Equal(denied.Back(2), []float64{0}) {
		t.Errorf("of a denial: %v", denied.Back(2))
	}
}
