package decide

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideAsMemory compares the statements with the in-memory model, result by result
// and to the last bit: 100 random histories of 100 steps for each variant, of all verbs,
// mixed costs, plans that change under one name, and a clock that jumps back.
func TestDecideAsMemory(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	var histories atomic.Int64
	for _, base := range bed.Variants(10, 10*time.Second) {
		t.Run(bed.Variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			inSQL := bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
			rapid.Check(t, func(rt *rapid.T) {
				inMemory := limiter.NewMemory(&limiter.Config{Now: clock.Now})
				plans := bed.DrawPlans(rt, base, fmt.Sprintf("p%d", histories.Add(1)))
				at := int64(1_000_000_000)
				var made [2][]limiter.Result // what Undo may be called with, for either
				for step := range 100 {
					at = max(0, at+bed.DrawDelta(rt, plans[0]))
					clock.Set(at)
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					op := rapid.SampledFrom(append(bed.Operations(p.Algorithm), "undo")).Draw(rt, "op")
					key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
					cost := bed.DrawCost(rt, op, p)
					var want, got limiter.Result
					var wantErr, gotErr error
					if n := len(made[0]); op == "undo" && n > 0 && p.Algorithm != limiter.LeakyBucketQueue {
						i := rapid.IntRange(max(0, n-5), n-1).Draw(rt, "undone")
						want, wantErr = inMemory.Undo(context.Background(), p, key, made[0][i])
						got, gotErr = inSQL.Undo(context.Background(), p, key, made[1][i])
					} else if op != "undo" {
						want, wantErr = conformance.Do(context.Background(), inMemory, p, op, key, cost)
						got, gotErr = conformance.Do(context.Background(), inSQL, p, op, key, cost)
					}
					made[0], made[1] = append(made[0], want), append(made[1], got)
					if (wantErr == nil) != (gotErr == nil) {
						rt.Fatalf("step %d: %s %v at %d: SQL: %v, memory: %v", step, op, cost, at, gotErr, wantErr)
					}
					want.Source = got.Source
					if got != want {
						rt.Fatalf("step %d: %s %v at %d under %+v\nSQL:    %+v\nmemory: %+v", step, op, cost, at, p, got, want)
					}
				}
			})
		})
	}
}
