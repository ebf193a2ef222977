package bound

import (
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Window returns the window of an Aligned policy, or of one with a Calendar, that at is in:
// from start until before end. Hours are only correct in zones whose clocks are never
// set, and other calendars in zones where each day begins at midnight.
func Window(p limiter.Policy, at time.Time) (start, end time.Time) {
	if p.Calendar == "" {
		into := at.UnixMicro() % p.Period.Microseconds() // since 1970
		start = time.UnixMicro(at.UnixMicro() - into)
		return start, start.Add(p.Period)
	}
	zone, err := time.LoadLocation(p.TimeZone)
	if err != nil {
		panic(err) // the policy is valid, so its zone was loaded before
	}
	local := at.In(zone)
	year, month, day := local.Date()
	date := func(month time.Month, day, hour int) time.Time {
		return time.Date(year, month, day, hour, 0, 0, 0, zone)
	}
	switch p.Calendar {
	case limiter.Hour:
		return date(month, day, local.Hour()), date(month, day, local.Hour()+1)
	case limiter.Day:
		return date(month, day, 0), date(month, day+1, 0)
	case limiter.Week:
		monday := day - (int(local.Weekday())+6)%7
		return date(month, monday, 0), date(month, monday+7, 0)
	}
	return date(month, 1, 0), date(month+1, 1, 0)
}

// met returns the number of windows between from and to, with those that they are in.
func met(p limiter.Policy, from, to time.Time) (n int64) {
	if p.Calendar == "" {
		period := p.Period.Microseconds()
		return to.UnixMicro()/period - from.UnixMicro()/period + 1
	}
	for _, end := Window(p, from); !end.After(to); _, end = Window(p, end) {
		n++
	}
	return n + 1
}
