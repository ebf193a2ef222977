// Package bound computes the most that a limiter may admit. It follows the definitions
// in docs/algorithms.md, and shares no code with the limiter.
package bound

import (
	"math"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Slack is the accepted rounding error in units.
const Slack = 1e-6

// Allowed returns the most units that one key may be admitted within any span of
// elapsed, with several plans in turn. That is the bound of the most generous plan,
// because units admitted under one plan count against the others.
func Allowed(plans []limiter.Policy, elapsed time.Duration) (most float64) {
	for _, p := range plans {
		most = max(most, allowed(p, elapsed))
	}
	return most
}

// Exceeded reports whether admitted units are more than allowed.
func Exceeded(admitted, allowed float64) bool { return admitted > allowed+Slack }

// allowed returns the bound for one plan, by the definition of its algorithm.
func allowed(p limiter.Policy, elapsed time.Duration) float64 {
	periods := elapsed.Seconds() / p.Period.Seconds()
	switch p.Algorithm {
	case limiter.FixedWindow, limiter.SlidingWindowLog:
		// Limit for each window (of the log: period) that can begin in elapsed.
		return p.Limit * (math.Floor(periods) + 1)
	case limiter.SlidingWindowCounter:
		if periods < 1 {
			// At most one edge is within elapsed. After it the weight of the previous
			// window falls linearly, and frees that share of its units.
			return p.Limit * (1 + periods)
		}
		return p.Limit * (math.Floor(periods) + 2)
	}
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	return burst + p.Limit*periods
}
