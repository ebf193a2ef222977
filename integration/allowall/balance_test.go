package allowall

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAnyOfABalance: pools may be a window and a balance. The window gives first, then what
// was granted, then the overdraft.
func TestAllowAnyOfABalance(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]*limiter.Limiter{
		"memory": limiter.NewMemory(nil), "database": must.OK(limiter.New(testworld.NewPool(t), nil))(t),
	} {
		weekly := limiter.Policy{Name: "weekly", Algorithm: limiter.FixedWindow, Limit: 10, Period: 7 * 24 * time.Hour}
		credits := limiter.Policy{Name: "credits", Algorithm: limiter.Balance, Overdraft: 3}
		must.OK(l.Grant(t.Context(), credits, "a", 5, limiter.GrantOptions{}))(t)
		pools := func(cost float64) []limiter.Request {
			return []limiter.Request{weekly.Request("a", cost), credits.Request("a", cost)}
		}
		for i, c := range []struct {
			got         limiter.Any
			by          int
			first, then float64
			left        float64 // of the balance and its overdraft
			denied      bool
		}{
			{got: must.OK(l.AllowAny(t.Context(), pools(8)...))(t), by: 0, first: 8, left: 8},
			{got: must.OK(l.AllowAny(t.Context(), pools(4)...))(t), by: 1, then: 4, left: 4},
			{got: must.OK(l.AllowAnySplit(t.Context(), pools(5)...))(t), by: 0, first: 2, then: 3, left: 1},
			{got: must.OK(l.AllowAnySplit(t.Context(), pools(2)...))(t), by: -1, left: 1, denied: true},
		} {
			first, then := c.got.PerRequest[0], c.got.PerRequest[1]
			if c.got.GrantedBy != c.by || c.got.Allowed == c.denied || first.Granted != c.first || then.Granted != c.then {
				t.Errorf("%s %d: got %+v", name, i, c.got)
			}
			if i > 0 && then.Remaining != c.left {
				t.Errorf("%s %d: the balance has %v left, want %v", name, i, then.Remaining, c.left)
			}
		}
		if u := must.OK(l.Usage(t.Context(), credits, "a"))(t); u.Result.Remaining != 1 || u.Result.Level != 2 {
			t.Errorf("%s: the balance is %+v in the end, want a debt of 2 and 1 left", name, u)
		}
	}
}
