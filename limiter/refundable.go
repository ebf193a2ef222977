package limiter

import "time"

// Refundable is how many of the units that r granted, under this policy and age
// ago, can be given to Refund now without letting any pass twice. The caller
// measures age, from before it asked. It is 0 where r granted nothing, was decided
// by FailOpen or was Replayed, and for a LeakyBucketQueue. It knows of no Reset since.
//
//   - Of a LeakyBucket, TokenBucket or GCRA, what is Granted less what leaks during
//     age, with each Tick that ends: that much room has been others' already.
//   - Of a FixedWindow or SlidingWindowCounter, all until the window has ended that
//     they were counted in, and then nothing.
//   - Of a SlidingWindowLog, all until they have left the window. Refund takes its
//     newest entries first, so that units of others may be counted for up to age less.
//
// A Reserve and its Cancel do the same to the microsecond and across processes.
func (p Policy) Refundable(r Result, age time.Duration) float64 {
	rules := newRules(&p)
	age = max(0, age)
	units := r.Granted
	switch {
	case !r.Allowed || r.Replayed || r.Source == SourceDegraded || p.Algorithm == LeakyBucketQueue:
		return 0
	case p.Algorithm == FixedWindow && age >= r.ResetAfter,
		p.Algorithm == SlidingWindowCounter && age >= r.ResetAfter-p.Period, // empty a period after its end
		p.Algorithm == SlidingWindowLog && age >= p.Period:
		return 0
	case p.Algorithm.bucket():
		// It is empty at the end of a tick, which tells how much of one was over.
		over := (rules.tick - r.ResetAfter.Microseconds()%rules.tick) % rules.tick
		units -= float64((over+age.Microseconds())/rules.tick) * rules.leak
	}
	if !(units >= leastCost(rules.burst)) { // nor what an invalid policy makes of it
		return 0
	}
	return units
}
