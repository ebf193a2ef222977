package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestSQLDecidesAsMemory holds the statements to the in-memory model, result
// by result and to the last bit: 100 random histories of 100 steps for each
// variant, of all verbs, mixed costs, plans that change under one name, and a
// clock that jumps back.
func TestSQLDecidesAsMemory(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	var histories atomic.Int64
	for _, base := range variants(10, 10*time.Second) {
		t.Run(variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			inSQL := newLimiter(t, pool, &limiter.Config{Now: clock.Now, DenyCacheTTL: -1})
			rapid.Check(t, func(rt *rapid.T) {
				inMemory := limiter.NewMemory(&limiter.Config{Now: clock.Now})
				plans := drawPlans(rt, base, fmt.Sprintf("p%d", histories.Add(1)))
				at := int64(1_000_000_000)
				var made [2][]limiter.Result // what Undo may be asked for, of either
				for step := range 100 {
					at = max(0, at+drawDelta(rt, plans[0]))
					clock.Set(at)
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					op := rapid.SampledFrom(append(ops(p.Algorithm), "undo")).Draw(rt, "op")
					key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
					cost := drawCost(rt, op, p)
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

// drawPlans is one policy, or two that share a name but not their numbers.
func drawPlans(rt *rapid.T, p limiter.Policy, name string) []limiter.Policy {
	p.Name = name
	limits := []float64{1, 2.5, 10, 10, 1000, 1e12}
	if p.Algorithm == limiter.SlidingWindowLog { // its running totals are where sums of many costs round
		limits = append(limits, 1e12, 1<<52)
	}
	p.Limit = rapid.SampledFrom(limits).Draw(rt, "limit")
	if p.Algorithm != limiter.FixedWindow && p.Algorithm != limiter.SlidingWindowCounter && p.Algorithm != limiter.SlidingWindowLog {
		p.Burst = p.Limit * rapid.SampledFrom([]float64{1, 1, 0.5, 3}).Draw(rt, "burst")
	}
	if rapid.IntRange(0, 3).Draw(rt, "blocks") == 0 {
		p.BlockFor = 7 * time.Second
	}
	if rapid.IntRange(0, 1).Draw(rt, "plans") > 0 {
		return []limiter.Policy{p}
	}
	q, times := p, rapid.SampledFrom([]float64{2, 0.5, 1. / 128}).Draw(rt, "times") // sums of their parts stay exact
	q.Limit, q.Burst = p.Limit*times, p.Burst*times
	if rapid.Bool().Draw(rt, "other period") {
		q.Period = 4 * time.Second
	}
	return []limiter.Policy{p, q}
}

func ops(a limiter.Algorithm) []string {
	all := []string{"allow", "allow", "allow", "allow_up_to", "allow_up_to", "check", "fill", "block", "unblock", "reset"}
	if a != limiter.LeakyBucketQueue {
		all = append(all, "refund", "refund")
	}
	return all
}

// drawDelta is how far the clock moves: mostly on by parts of a period, at
// times exactly to its edges, far beyond it, or back.
func drawDelta(rt *rapid.T, p limiter.Policy) int64 {
	period := p.Period.Microseconds()
	switch rapid.IntRange(0, 9).Draw(rt, "move") {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return period
	case 3:
		return -rapid.Int64Range(1, period).Draw(rt, "back")
	case 4:
		return rapid.Int64Range(0, 4*period).Draw(rt, "far")
	case 5:
		return p.Tick.Microseconds()
	}
	return rapid.Int64Range(0, period/4).Draw(rt, "on")
}

func drawCost(rt *rapid.T, op string, p limiter.Policy) float64 {
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	least := min(1, burst*1e-9)
	switch op {
	case "block":
		return rapid.Float64Range(0.000001, 12).Draw(rt, "seconds")
	case "unblock", "reset":
		return 0
	case "check":
		if rapid.IntRange(0, 2).Draw(rt, "reads") == 0 {
			return 0
		}
	}
	switch rapid.IntRange(0, 7).Draw(rt, "cost") {
	case 0:
		return max(least, rapid.Float64Range(0, burst).Draw(rt, "fraction"))
	case 1:
		return burst
	case 2:
		return max(least, burst/10)
	case 3:
		return max(least, burst*rapid.Float64Range(0, 2).Draw(rt, "share"))
	case 4:
		return least
	}
	return float64(rapid.Int64Range(1, max(1, int64(burst/2))).Draw(rt, "units"))
}
