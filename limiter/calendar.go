package limiter

import (
	"sync"
	"sync/atomic"
	"time"
)

// Calendar makes a FixedWindow's windows the periods of a calendar, in
// Policy.TimeZone. Its value is the name used in JSON, YAML, flags and docs; the
// empty string is no calendar.
//
// Every moment is in exactly one period. One ends where the next begins: at the
// first moment whose local date is the first day of the next period, or later.
// So a day is 23 or 25 hours long where clocks are set, a midnight that does not
// occur is the moment when it would have, and one that occurs twice ends the day
// once.
type Calendar string

const (
	// Hour ends at each whole hour of the local clock and where that clock is
	// set: an hour that occurs twice is two periods, and one of which half is
	// left out is short.
	Hour Calendar = "hour"
	// Day is a local date.
	Day Calendar = "day"
	// Week is seven local dates, from Monday.
	Week Calendar = "week"
	// Month is a month of the local dates.
	Month Calendar = "month"
)

// Calendars returns every calendar, in a fixed order.
func Calendars() []Calendar { return []Calendar{Hour, Day, Week, Month} }

func (c Calendar) known() bool { return c.longest() != 0 }

// Microseconds of a clock.
const (
	hourUs = int64(time.Hour / time.Microsecond)
	dayUs  = 24 * hourUs
)

// longest is no less than any period of the calendar: no clock was ever set by
// more than a day, which is how far the date line has moved.
func (c Calendar) longest() int64 {
	switch c {
	case Hour:
		return hourUs
	case Day:
		return 2 * dayUs
	case Week:
		return 8 * dayUs
	case Month:
		return 32 * dayUs
	}
	return 0
}

// calendar tells where periods end in one zone: for the statements and for the
// in-memory limiter alike, so that there is one opinion. There is one value for
// each calendar and zone, so that rules can be compared.
type calendar struct {
	unit Calendar
	zone *time.Location
	last atomic.Pointer[bounds]
}

// bounds are four moments in a row at which periods end, in microseconds.
type bounds [4]int64

type calendarName struct {
	unit Calendar
	zone string
}

var calendars sync.Map // of calendarName to *calendar

// calendarOf returns nil without a calendar, and the error of a zone that is not
// known here.
func calendarOf(unit Calendar, zone string) (*calendar, error) {
	if unit == "" {
		return nil, nil
	}
	name := calendarName{unit, zone}
	if c, ok := calendars.Load(name); ok {
		return c.(*calendar), nil
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return nil, err
	}
	c, _ := calendars.LoadOrStore(name, &calendar{unit: unit, zone: location})
	return c.(*calendar), nil
}

// badTimeZone is what is wrong with the zone of a policy that has a known
// calendar.
func badTimeZone(unit Calendar, zone string) string {
	if zone == "Local" {
		return "differs from machine to machine: name the zone, such as Europe/Vienna"
	}
	if _, err := calendarOf(unit, zone); err != nil {
		return `is not known here: take a name of the IANA time zone database, such as Europe/Vienna; if this system has none, import _ "time/tzdata"`
	}
	return ""
}

// around returns the bounds about a moment: the second of them is not after it,
// and the third is the end of its period.
func (c *calendar) around(at int64) *bounds {
	if b := c.last.Load(); b != nil && b[1] <= at && at < b[2] {
		return b
	}
	// Two longest periods back there are two ends at least to come before at.
	b := new(bounds)
	b[1] = c.end(at - 2*c.unit.longest())
	b[2] = c.end(b[1])
	for b[2] <= at {
		b[0], b[1], b[2] = b[1], b[2], c.end(b[2])
	}
	b[3] = c.end(b[2])
	c.last.Store(b)
	return b
}

// endOf is the end of the period that holds at.
func (c *calendar) endOf(at int64) int64 { return c.around(at)[2] }

// near is what a statement is told, whose clock is expected to read about at:
// the end of a period that begins at from, and the end of the next one, so that
// at is not close to either edge.
func (c *calendar) near(at int64) (from, turn, until int64) {
	b := c.around(at)
	if at-b[1] < b[2]-at {
		return b[0], b[1], b[2]
	}
	return b[1], b[2], b[3]
}

// end finds the end of the period that holds at.
func (c *calendar) end(at int64) int64 {
	local := time.UnixMicro(at).In(c.zone)
	if c.unit == Hour {
		return c.hourEnd(at, local)
	}
	for date := local; ; {
		date = c.unit.next(date)
		// Where a clock was set back over midnight, the date that local reads may
		// be one that had ended before.
		if start := c.start(date); start > at {
			return start
		}
	}
}

// next is the first date of the period after the one that has the date.
func (c Calendar) next(date time.Time) time.Time {
	y, m, d := date.Date()
	switch c {
	case Day:
		d++
	case Week:
		d += 7 - (int(date.Weekday())+6)%7
	default:
		m, d = m+1, 1
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// start is the first moment whose local date is that of midnight, which is in
// UTC, or a later one. time.Date would not do: of a midnight that does not occur,
// or twice, it may return either side.
func (c *calendar) start(midnight time.Time) int64 {
	reading := midnight.UnixMicro()
	// From before any zone can have that date, one stretch of a constant offset
	// after the other.
	for at := reading - 26*hourUs; ; {
		local := time.UnixMicro(at).In(c.zone)
		at = max(at, reading-offset(local))
		end, ok := steadyUntil(local)
		if !ok || at < end {
			return at
		}
		at = end
	}
}

// hourEnd is the next whole hour, or where the offset changes if that is before.
func (c *calendar) hourEnd(at int64, local time.Time) int64 {
	was := offset(local)
	reading := at + was
	whole := at + hourUs - mod(reading, hourUs)
	for {
		end, ok := steadyUntil(local)
		if !ok || end >= whole {
			return whole
		}
		// Not every bound of a zone is one of its offset.
		local = time.UnixMicro(end).In(c.zone)
		if offset(local) != was {
			return end
		}
	}
}

// offset is by how much a local clock is ahead of UTC.
func offset(local time.Time) int64 {
	_, seconds := local.Zone()
	return int64(seconds) * int64(time.Second/time.Microsecond)
}

// steadyUntil is until when the offset stays as it is, at least; false if it does
// for ever.
func steadyUntil(local time.Time) (int64, bool) {
	_, end := local.ZoneBounds()
	if end.IsZero() {
		return 0, false
	}
	if !end.After(local) {
		// After the zone's last known change ZoneBounds cuts at 365 days of a year, so
		// the last day of a leap year is after its end. No change is on it.
		end = time.Date(local.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return end.UnixMicro(), true
}

// mod is the remainder that is never negative.
func mod(a, b int64) int64 { return ((a % b) + b) % b }
