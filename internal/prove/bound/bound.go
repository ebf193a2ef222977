// Package bound has the bounds that a proof holds the limiter to. They follow from the
// definitions in docs/algorithms.md, and share nothing with the code that decides.
package bound

import (
	"math"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Slack is the rounding error that is accepted. It is far less than one unit.
const Slack = 1e-6

// Allowed returns the most units that are admitted to one key, asked for under several
// plans in turn, within any span of elapsed. It is what the most generous plan admits
// alone: units admitted by one plan count against the others.
func Allowed(plans []limiter.Policy, elapsed time.Duration) (most float64) {
	for _, p := range plans {
		most = max(most, allowed(p, elapsed))
	}
	return most
}

// Exceeded reports whether admitted whole units are more than allowed.
func Exceeded(admitted, allowed float64) bool { return admitted > allowed+Slack }

// allowed returns the same for one plan, by the definition of its algorithm.
func allowed(p limiter.Policy, elapsed time.Duration) float64 {
	periods := elapsed.Seconds() / p.Period.Seconds()
	switch p.Algorithm {
	case limiter.FixedWindow, limiter.SlidingWindowLog:
		// As many windows (of the log: periods) of Limit each as can begin in it.
		return p.Limit * (math.Floor(periods) + 1)
	case limiter.SlidingWindowCounter:
		if periods < 1 {
			// One edge at most. Behind it the window before weighs 1 less what
			// has passed, so only that much of it is free again.
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
