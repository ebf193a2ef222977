package algorithm

import (
	"sync"
	"sync/atomic"
	"time"
)

// Unit is the period of a calendar, by its name in a policy.
type Unit string

// The units.
const (
	Hour  Unit = "hour"
	Day   Unit = "day"
	Week  Unit = "week"
	Month Unit = "month"
)

// Microseconds of a clock.
const (
	hourUs = int64(time.Hour / time.Microsecond)
	dayUs  = 24 * hourUs
)

// Longest is no less than any period of the calendar: no clock was ever set by
// more than a day, which is how far the date line has moved. It is 0 for what is none.
func (u Unit) Longest() int64 {
	switch u {
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

// Calendar tells where periods end in one zone: for the statements and for the
// in-memory limiter alike, so that there is one opinion. There is one value for
// each Calendar and zone, so that rules can be compared.
type Calendar struct {
	unit Unit
	zone *time.Location
	last atomic.Pointer[bounds]
}

// bounds are four moments in a row at which periods end, in microseconds.
type bounds [4]int64

type calendarName struct {
	unit Unit
	zone string
}

var calendars sync.Map // of calendarName to *Calendar

// CalendarOf returns nil without a calendar, and the error of a zone that is not
// known here.
func CalendarOf(unit Unit, zone string) (*Calendar, error) {
	if unit == "" {
		return nil, nil
	}
	name := calendarName{unit, zone}
	if c, ok := calendars.Load(name); ok {
		return c.(*Calendar), nil
	}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return nil, err
	}
	c, _ := calendars.LoadOrStore(name, &Calendar{unit: unit, zone: location})
	return c.(*Calendar), nil
}

// around returns the bounds about a moment: the second of them is not after it,
// and the third is the end of its period.
func (c *Calendar) around(at int64) *bounds {
	if b := c.last.Load(); b != nil && b[1] <= at && at < b[2] {
		return b
	}
	// Two longest periods back there are two ends at least to come before at.
	b := new(bounds)
	b[1] = c.end(at - 2*c.unit.Longest())
	b[2] = c.end(b[1])
	for b[2] <= at {
		b[0], b[1], b[2] = b[1], b[2], c.end(b[2])
	}
	b[3] = c.end(b[2])
	c.last.Store(b)
	return b
}

// endOf is the end of the period that holds at.
func (c *Calendar) endOf(at int64) int64 { return c.around(at)[2] }

// Near is what a statement is told, whose clock is expected to read about at:
// the end of a period that begins at from, and the end of the next one, so that
// at is not close to either edge.
func (c *Calendar) Near(at int64) (from, turn, until int64) {
	b := c.around(at)
	if at-b[1] < b[2]-at {
		return b[0], b[1], b[2]
	}
	return b[1], b[2], b[3]
}

// end finds the end of the period that holds at.
func (c *Calendar) end(at int64) int64 {
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
func (u Unit) next(date time.Time) time.Time {
	y, m, d := date.Date()
	switch u {
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
func (c *Calendar) start(midnight time.Time) int64 {
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
func (c *Calendar) hourEnd(at int64, local time.Time) int64 {
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
