package limiter

import (
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Calendar makes a FixedWindow's windows the periods of a calendar, in Policy.TimeZone.
// Its value is the name used in JSON, YAML, flags and docs. The empty string is no
// calendar.
//
// Every moment is in exactly one period. A period ends where the next begins: at the
// first moment at which a local clock shows the date and time of that, or later ones. Where
// clocks change:
//
//   - A day is 23 or 25 hours long.
//   - A begin that does not occur is the moment at which it would have.
//   - A begin that occurs twice ends the period once.
type Calendar string

const (
	// Hour ends at each whole hour of the local clock, or minute of the anchor, and where that clock is set. An
	// hour that occurs twice is two periods; an hour that is half left out is a short
	// one.
	Hour = Calendar(algorithm.Hour)
	// Day is a local date, or lasts from one time of the anchor to the next.
	Day = Calendar(algorithm.Day)
	// Week is seven days, from Monday or the anchor's weekday.
	Week = Calendar(algorithm.Week)
	// Month is a month of the local dates, or lasts from one day of the anchor to the next.
	Month = Calendar(algorithm.Month)
	// Quarter is three months, from January, April, July and October or as the anchor says.
	Quarter = Calendar(algorithm.Quarter)
	// Year is twelve months, from January or the anchor's month: a fiscal year.
	Year = Calendar(algorithm.Year)
)

// Calendars returns every calendar, in a fixed order.
func Calendars() []Calendar { return []Calendar{Hour, Day, Week, Month, Quarter, Year} }

func (c Calendar) known() bool { return algorithm.Unit(c).Longest() != 0 }

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
