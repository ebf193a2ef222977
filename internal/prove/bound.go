package prove

import (
	"math"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// allowed is how many units p's algorithm, by its own definition, admits to one
// key within any span of elapsed: the bound that a proof holds the limiter to.
// It is worked out from the definitions in docs/algorithms.md and shares
// nothing with the code that decides.
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

// allowedOf is how many units are admitted to one key that is asked for under
// several plans in turn: no more than the most generous of them admits alone. What
// one plan admitted counts against the others.
func allowedOf(plans []limiter.Policy, elapsed time.Duration) (most float64) {
	for _, p := range plans {
		most = max(most, allowed(p, elapsed))
	}
	return most
}

// slack is what rounding is forgiven, and far less than one unit.
const slack = 1e-6

// exceeds tells whether whole units are more than allowed.
func exceeds(admitted, allowed float64) bool { return admitted > allowed+slack }
