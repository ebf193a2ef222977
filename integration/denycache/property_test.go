package denycache

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

// TestDenyCacheChangesNoDecision compares a limiter with a cache that only RetryAfter ends
// with the in-memory model, which decides each request again. Decisions, reasons and times
// are the same, whatever the cache answered before.
//   - Units counted since a remembered denial can only make its RetryAfter too short.
//   - Levels are as of that denial and are not compared.
//   - A microsecond's difference is allowed: requests answered from the cache do not bring
//     the database's rows up to date.
func TestDenyCacheChangesNoDecision(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	var histories atomic.Int64
	for _, base := range bed.Variants(10, 10*time.Second) {
		t.Run(bed.Variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			inSQL := bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DenyCacheTTL: time.Hour})
			answered := 0
			rapid.Check(t, func(rt *rapid.T) {
				inMemory := limiter.NewMemory(&limiter.Config{Now: clock.Now})
				p := bed.DrawPlans(rt, base, fmt.Sprintf("c%d", histories.Add(1)))[0]
				p.Burst, p.Limit = p.Burst/p.Limit*min(p.Limit, 1000), min(p.Limit, 1000) // whose microseconds need no rounding
				at, retryAt := int64(1_000_000_000), int64(0)
				counted := false // something was, since the last denial by the database
				for step := range 40 {
					if retryAt > at && rapid.IntRange(0, 3).Draw(rt, "retry") == 0 {
						at = retryAt - rapid.Int64Range(0, 1).Draw(rt, "early")
					} else {
						at += max(0, bed.DrawDelta(rt, p)/4)
					}
					clock.Set(at)
					op := "allow"
					if rapid.IntRange(0, 4).Draw(rt, "other") == 0 {
						op = rapid.SampledFrom(bed.Operations(p.Algorithm)).Draw(rt, "op")
					}
					cost := bed.DrawCost(rt, op, p)
					if op == "allow" || op == "allow_up_to" || op == "charge" { // not as small as the slack for rounding
						cost = max(cost, p.Limit/1000)
					}
					want, wantErr := conformance.Do(context.Background(), inMemory, p, op, "k", cost)
					got, gotErr := conformance.Do(context.Background(), inSQL, p, op, "k", cost)
					if wantErr != nil || gotErr != nil {
						rt.Fatalf("step %d: %s %v at %d: SQL: %v, memory: %v", step, op, cost, at, gotErr, wantErr)
					}
					if got.Source == limiter.SourceCache {
						answered++
					}
					same := got.Allowed == want.Allowed && bed.Near(got.Granted, want.Granted) && got.At.Equal(want.At)
					if counted && got.Source == limiter.SourceCache {
						same = same && got.RetryAfter-time.Microsecond <= want.RetryAfter
					} else {
						same = same && got.Reason == want.Reason && nearly(got.RetryAfter, want.RetryAfter) && nearly(got.ResetAfter, want.ResetAfter)
					}
					if !same {
						rt.Fatalf("step %d: %s %v at %d under %+v\nSQL:    %+v\nmemory: %+v", step, op, cost, at, p, got, want)
					}
					if op == "allow" && !got.Allowed && got.Source == limiter.SourceDatabase {
						counted = false
					}
					counted = counted || got.Granted > 0
					retryAt = 0
					if !got.Allowed && got.RetryAfter != limiter.Never {
						retryAt = at + got.RetryAfter.Microseconds()
					}
				}
			})
			t.Logf("%d answers from the cache", answered)
			if answered < bed.Checks() {
				t.Errorf("only %d answers from the cache", answered)
			}
		})
	}
}

func nearly(a, b time.Duration) bool { return a-b <= time.Microsecond && b-a <= time.Microsecond }
