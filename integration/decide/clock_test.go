package decide

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideWindowEndsWhileARequestWaits: a request reads the clock before a fixed window's
// end and waits for the row. After that end, a transaction gives units back or is denied, and
// begins no window. The request then finds the count of its window.
func TestDecideWindowEndsWhileARequestWaits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	before, after := new(conformance.Clock), new(conformance.Clock)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: before.Now, DisableDenyCache: true, DisableTimeout: true})
	later := testworld.NewLimiter(t, pool, &limiter.Config{Now: after.Now, DisableDenyCache: true})
	const edge = 3_600_000_000
	before.Set(edge - 1)
	after.Set(edge)
	for _, p := range []limiter.Policy{
		{Name: "first", Algorithm: limiter.FixedWindow, Limit: 4, Period: time.Microsecond},
		{Name: "aligned", Algorithm: limiter.FixedWindow, Limit: 4, Period: time.Minute, Aligned: true},
		{Name: "calendar", Algorithm: limiter.FixedWindow, Limit: 4, Calendar: limiter.Hour},
	} {
		for verb, pass := range map[string]func(d verbs.Limiter, first limiter.Result) (limiter.Result, error){
			"refund": func(d verbs.Limiter, _ limiter.Result) (limiter.Result, error) {
				return d.Refund(ctx, p, "refund", 1)
			},
			"undo": func(d verbs.Limiter, first limiter.Result) (limiter.Result, error) {
				return d.Undo(ctx, p, "undo", first)
			},
			"denial": func(d verbs.Limiter, _ limiter.Result) (limiter.Result, error) {
				if err := d.Block(ctx, p, "denial", time.Minute); err != nil {
					return limiter.Result{}, err
				}
				r, err := d.Allow(ctx, p, "denial")
				if err != nil || r.Allowed {
					return r, fmt.Errorf("a blocked key was allowed: %+v, %w", r, err)
				}
				return r, d.Unblock(ctx, p, "denial")
			},
		} {
			first := testworld.Must(t)(l.Allow(ctx, p, verb))
			tx := must.OK(pool.Begin(ctx))(t)
			defer tx.Rollback(ctx)
			r, err := pass(later.InTx(tx), first)
			if err != nil || r.Level != 0 || r.Granted != 0 {
				t.Fatalf("%s, %s after the window's end: %+v, %v, want no units in use and none given back", p.Name, verb, r, err)
			}
			answers := testworld.Request(ctx, l, p.Request(verb, 4))
			testworld.AwaitBlocked(t, pool)
			must.Succeed(t, tx.Commit(ctx))
			if r := testworld.ResultOf(t, verb, answers); r.Allowed || r.Level != 1 {
				t.Errorf("%s, %s: 4 of 4 units after 1 in the same window: %+v, want a denial at level 1", p.Name, verb, r)
			}
			if r := testworld.Must(t)(l.AllowN(ctx, p, verb, 3)); !r.Allowed || r.Level != 4 {
				t.Errorf("%s, %s: the 3 units that are left: %+v, want them allowed", p.Name, verb, r)
			}
		}
	}
}
