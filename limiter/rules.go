package limiter

import (
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// calendar returns the calendar of a policy, nil for none.
func (p Policy) calendar() (*algorithm.Calendar, error) {
	anchor, err := algorithm.AnchorOf(p.Anchor)
	if err != nil {
		return nil, p.bad("Anchor", p.Anchor, err.Error())
	}
	c, err := algorithm.CalendarOf(algorithm.Unit(p.Calendar), p.TimeZone, anchor)
	if err != nil {
		return nil, p.bad("TimeZone", p.TimeZone, err.Error())
	}
	return c, nil
}

// newRules compiles a valid policy. It returns an error if the data of its time zone can
// no longer be read.
func newRules(p *Policy) (algorithm.Rules, error) {
	r := algorithm.Rules{
		Burst:    p.room(),
		Tick:     1,
		Period:   p.Period.Microseconds(),
		Aligned:  p.Aligned,
		BlockFor: p.BlockFor.Microseconds(),
	}
	if p.Algorithm == Balance {
		r.Capacity, r.Leak, r.Lifetime = r.Burst, 1, max(time.Hour.Microseconds(), r.BlockFor)
		return r, nil
	}
	// The slack is too small to ever let one whole unit more pass.
	r.Capacity = r.Burst + min(1e-6, 1e-9*r.Burst)
	if p.Tick > 0 {
		r.Tick = p.Tick.Microseconds()
	}
	var err error
	switch {
	case p.Algorithm.bucket():
		r.Leak = float64(p.Limit*float64(r.Tick)) / float64(r.Period)
		r.Lifetime = r.Drain(r.Capacity)
	case p.Algorithm == SlidingWindowCounter:
		r.Lifetime = 2 * r.Period
	case p.Calendar != "":
		r.Calendar, err = p.calendar()
		r.Lifetime = algorithm.Unit(p.Calendar).Longest()
	default:
		r.Lifetime = r.Period
	}
	r.Lifetime = min(max(r.Lifetime, r.BlockFor), algorithm.MaxLifetime)
	return r, err
}

// rest returns the policy of the row that keys without one share. A block would be one of all
// keys, and a lease one of the shared row under a caller's key.
func (p Policy) rest() Policy {
	if p.Burst != 0 {
		p.Burst *= p.RestLimit / p.Limit
	}
	p.Limit, p.BlockFor, p.Lease, p.MaxKeys, p.RestLimit, p.Marks = p.RestLimit, 0, 0, 0, 0, ""
	return p
}

// keyBound compiles MaxKeys and RestLimit of a valid policy.
func keyBound(p *Policy) (*store.KeyBound, error) {
	if p.MaxKeys == 0 {
		return nil, nil
	}
	b := &store.KeyBound{MaxKeys: p.MaxKeys}
	if p.RestLimit == 0 {
		return b, nil
	}
	rest := p.rest()
	rules, err := newRules(&rest)
	b.Rest = &rules
	return b, err
}

// scale returns what the least cost and the steps of a fraction are a part of: the burst.
func scale(p *Policy, burst float64) float64 {
	if p.Algorithm == Balance {
		return 1
	}
	return burst
}

// step returns in which steps units of a cost are granted if not all fit.
func step(cost, scale float64) float64 {
	if cost == math.Trunc(cost) {
		return 1
	}
	return min(1e-6*scale, cost)
}

// now returns Config.Now's time for the store; nil selects the store's clock.
func (s *shared) now() *int64 {
	if s.clock == nil {
		return nil
	}
	us := s.clock().UnixMicro()
	return &us
}
