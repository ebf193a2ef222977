// Package bound computes the most that a limiter may admit. It follows the definitions
// in docs/algorithms.md, and shares no code with the limiter.
package bound

import (
	"cmp"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Plan has the numbers of a policy. The zero Burst is the Limit.
type Plan struct {
	Algorithm    algorithm.Name
	Limit, Burst float64
	Period, Tick time.Duration
	Aligned      bool
	Calendar     algorithm.Unit // empty: none
	TimeZone     string
	Anchor       string
}

// Slack is the accepted rounding error in units.
const Slack = 1e-6

// Allowed returns the most units that one key, empty at from, may be admitted until to
// with several plans in turn. Units admitted under one plan count against the others. So
// it is the bound of one plan with their largest burst, fastest rate and shortest period.
func Allowed(plans []Plan, from, to time.Time) float64 {
	if len(plans) == 0 {
		return 0
	}
	p := plans[0]
	p.Burst = capacity(p)
	for _, q := range plans[1:] {
		p.Burst = max(p.Burst, capacity(q))
		if rate(q) > rate(p) {
			p.Limit, p.Tick = q.Limit*p.Period.Seconds()/q.Period.Seconds(), q.Tick
		}
	}
	if windows(p.Algorithm) {
		for _, q := range plans {
			p.Period = min(p.Period, q.Period)
		}
		p.Limit = p.Burst
	}
	return allowed(p, from, to)
}

// Exceeded reports whether admitted units are more than allowed.
func Exceeded(admitted, allowed float64) bool { return admitted > allowed+Slack }

func capacity(p Plan) float64 {
	if p.Burst == 0 {
		return p.Limit
	}
	return p.Burst
}

// rate returns units per second; 0 for a calendar.
func rate(p Plan) float64 {
	if p.Period == 0 {
		return 0
	}
	return p.Limit / p.Period.Seconds()
}

// windows reports whether the algorithm counts in windows.
func windows(a algorithm.Name) bool {
	return a == algorithm.FixedWindow || a == algorithm.SlidingWindowLog || a == algorithm.SlidingWindowCounter
}

// allowed returns the bound for one plan, by the definition of its algorithm.
func allowed(p Plan, from, to time.Time) float64 {
	if p.Aligned || p.Calendar != "" {
		return p.Limit * float64(met(p, from, to))
	}
	elapsed := to.Sub(from)
	periods := elapsed.Seconds() / p.Period.Seconds()
	switch p.Algorithm {
	case algorithm.FixedWindow, algorithm.SlidingWindowLog:
		// Limit for each window (of the log: period) that can begin in elapsed.
		return p.Limit * (math.Floor(periods) + 1)
	case algorithm.SlidingWindowCounter:
		if periods < 1 {
			// At most one edge is within elapsed. After it the weight of the previous
			// window falls linearly, and frees that share of its units.
			return p.Limit * (1 + periods)
		}
		return p.Limit * (math.Floor(periods) + 2)
	}
	if p.Tick > 0 {
		// An empty bucket starts its tick at the hit, so only whole ticks of elapsed leak.
		elapsed = elapsed.Truncate(p.Tick)
	}
	return capacity(p) + rate(p)*elapsed.Seconds()
}

// Window returns the window of an Aligned plan, or of one with a Calendar, that at is in:
// from start until before end. It is correct in zones whose clocks are set by whole hours
// and where each begin is shown once.
func Window(p Plan, at time.Time) (start, end time.Time) {
	if p.Calendar == "" {
		into := at.UnixMicro() % p.Period.Microseconds() // since 1970
		start = time.UnixMicro(at.UnixMicro() - into)
		return start, start.Add(p.Period)
	}
	zone, err := time.LoadLocation(p.TimeZone)
	if err != nil {
		panic(err) // the plan is valid, so its zone was loaded before
	}
	local, anchor := at.In(zone), anchorOf(p)
	year, month, day := local.Date()
	date := func(month time.Month, day int) time.Time {
		return time.Date(year, month, day, anchor.Hour(), anchor.Minute(), 0, 0, zone)
	}
	begin := func(n int) time.Time { return date(month, day+n) }
	switch p.Calendar {
	case algorithm.Hour:
		since := time.Duration((local.Minute()-anchor.Minute()+60)%60)*time.Minute + time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
		return local.Add(-since), local.Add(time.Hour - since)
	case algorithm.Day:
	case algorithm.Week:
		day -= (int(local.Weekday()-anchor.Weekday()) + 7) % 7
		begin = func(n int) time.Time { return date(month, day+7*n) }
	default:
		months := map[algorithm.Unit]time.Month{algorithm.Month: 1, algorithm.Quarter: 3, algorithm.Year: 12}[p.Calendar]
		month -= (month - anchor.Month() + 12) % months
		begin = func(n int) time.Time {
			m := month + time.Month(n)*months
			return date(m, min(anchor.Day(), time.Date(year, m+1, 0, 0, 0, 0, 0, zone).Day()))
		}
	}
	if begin(0).After(at) {
		return begin(-1), begin(0)
	}
	return begin(0), begin(1)
}

// anchorOf reads the anchor of a valid plan.
func anchorOf(p Plan) time.Time {
	at, err := time.Parse("2006-01-02T15:04", (cmp.Or(p.Anchor, "2024-01-01") + "T00:00")[:len("2006-01-02T15:04")])
	if err != nil {
		panic(err)
	}
	return at
}

// met returns the number of windows between from and to, with those that they are in.
func met(p Plan, from, to time.Time) (n int64) {
	if p.Calendar == "" {
		period := p.Period.Microseconds()
		return to.UnixMicro()/period - from.UnixMicro()/period + 1
	}
	for _, end := Window(p, from); !end.After(to); _, end = Window(p, end) {
		n++
	}
	return n + 1
}
