package limiter

import (
	"context"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestLogRetryAfterIsExact: for a denied cost that can fit, RetryAfter is never 0. A
// request at that time is allowed, and one a microsecond earlier is not, however the sums
// of the log round.
func TestLogRetryAfterIsExact(t *testing.T) {
	ctx := context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		at := int64(1_000_000_000)
		l := NewMemory(&Config{Now: func() time.Time { return time.UnixMicro(at) }})
		p := Policy{Name: "p", Algorithm: SlidingWindowLog, Period: 10 * time.Second}
		p.Limit = math.Exp2(rapid.Float64Range(0, 52).Draw(rt, "log2 of the limit"))
		if rapid.Bool().Draw(rt, "whole limit") {
			p.Limit = math.Round(p.Limit)
		}
		for range 60 {
			at += rapid.Int64Range(0, 2_000_000).Draw(rt, "on")
			cost := p.Limit * rapid.Float64Range(0, 1).Draw(rt, "share")
			if rapid.Bool().Draw(rt, "whole cost") {
				cost = math.Round(cost)
			}
			cost = max(cost, leastCost(p.Limit))
			verb := rapid.SampledFrom([]verb{verbTake, verbTake, verbTake, verbUpTo, verbCheck, verbCharge, verbRefund}).Draw(rt, "verb")
			r, err := l.engine.one(ctx, verb, p.Request("k", cost))
			if err != nil {
				rt.Fatal(err)
			}
			if r.Allowed {
				continue
			}
			if cost <= p.Limit && (r.RetryAfter <= 0 || r.RetryAfter == Never) {
				rt.Fatalf("%v of %v was denied with RetryAfter %v", cost, p.Limit, r.RetryAfter)
			}
			if r.RetryAfter == Never {
				continue
			}
			if verb == verbUpTo { // RetryAfter is for the first unit or step
				step := 1e-6 * p.Limit
				if cost == math.Trunc(cost) {
					step = 1
				}
				cost = min(cost, max(1, step))
			}
			denied := at
			for _, then := range []struct {
				after   time.Duration
				allowed bool
			}{{r.RetryAfter, true}, {r.RetryAfter - time.Microsecond, false}} {
				at = denied + then.after.Microseconds()
				if r, err := l.Check(ctx, p, "k", cost); err != nil || r.Allowed != then.allowed {
					rt.Fatalf("%v of %v, requested again after %v: %+v, %v", cost, p.Limit, then.after, r, err)
				}
			}
			at = denied
		}
	})
}
