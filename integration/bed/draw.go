package bed

import (
	"math"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/limiter"
)

// DrawShare returns a cost of which some fit: whole tenths of the burst, mostly the same
// one, so that requests merge.
func DrawShare(rt *rapid.T, p limiter.Policy) float64 {
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	return burst * rapid.SampledFrom([]float64{0.125, 0.125, 0.125, 0.25, 0.5}).Draw(rt, "share")
}

// Alike reports whether two results are equal but for the rounding of levels: merged
// requests round their sum once, single requests round each time.
func Alike(a, b limiter.Result) bool {
	near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*max(1, a.Burst) }
	soon := func(x, y time.Duration) bool { return x == y || (x-y).Abs() <= time.Microsecond }
	ok := near(a.Level, b.Level) && near(a.Remaining, b.Remaining) &&
		soon(a.RetryAfter, b.RetryAfter) && soon(a.ResetAfter, b.ResetAfter) && soon(a.Delay, b.Delay)
	a.Level, a.Remaining, a.RetryAfter, a.ResetAfter, a.Delay = b.Level, b.Remaining, b.RetryAfter, b.ResetAfter, b.Delay
	return ok && a == b
}

// DrawPlans returns one policy, or two that share a name but not their numbers.
func DrawPlans(rt *rapid.T, p limiter.Policy, name string) []limiter.Policy {
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

// Operations are the operations of conformance.Do, the usual ones more than once.
func Operations(a limiter.Algorithm) []string {
	all := []string{"allow", "allow", "allow", "allow_up_to", "allow_up_to", "check", "charge", "block", "unblock", "reset"}
	if a != limiter.LeakyBucketQueue {
		all = append(all, "refund", "refund")
	}
	return all
}

// DrawDelta returns how far the clock moves: mostly forward by parts of a period,
// sometimes exactly to its edges, far beyond it, or back.
func DrawDelta(rt *rapid.T, p limiter.Policy) int64 {
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

// DrawCost returns a cost for an operation: whole units, fractions, the whole burst or
// more. For a block it is in seconds.
func DrawCost(rt *rapid.T, op string, p limiter.Policy) float64 {
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
