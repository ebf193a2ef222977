package limiter

import "github.com/pglimit/pglimit/internal/algorithm"

// newRules compiles a valid policy.
func newRules(p *Policy) algorithm.Rules {
	r := algorithm.Rules{
		Burst:    p.burst(),
		Tick:     1,
		Period:   p.Period.Microseconds(),
		Aligned:  p.Aligned,
		BlockFor: p.BlockFor.Microseconds(),
	}
	// The slack is too small to ever let one whole unit more pass.
	r.Capacity = r.Burst + min(1e-6, 1e-9*r.Burst)
	if p.Tick > 0 {
		r.Tick = p.Tick.Microseconds()
	}
	switch {
	case p.Algorithm.bucket():
		r.Leak = float64(p.Limit*float64(r.Tick)) / float64(r.Period)
		r.Lifetime = r.Drain(r.Capacity)
	case p.Algorithm == SlidingWindowCounter:
		r.Lifetime = 2 * r.Period
	case p.Calendar != "":
		r.Calendar, _ = algorithm.CalendarOf(algorithm.Unit(p.Calendar), p.TimeZone)
		r.Lifetime = algorithm.Unit(p.Calendar).Longest()
	default:
		r.Lifetime = r.Period
	}
	r.Lifetime = min(max(r.Lifetime, r.BlockFor), algorithm.MaxLifetime)
	return r
}
