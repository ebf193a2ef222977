package algorithm

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/pglimit/pglimit/internal/zone"
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

// Longest returns an upper bound for the unit's periods, in microseconds. No clock was
// ever set by more than a day, when the date line moved. It is 0 for an unknown unit.
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

// Calendar computes the ends of periods in one zone, for the statements and the in-memory
// limiter. While a zone is in the cache, there is one value for each unit, so that rules
// can be compared. Rules that differ only in the value decide alike.
type Calendar struct {
	unit Unit
	zone *time.Location
	last atomic.Pointer[bounds]
}

// bounds are four successive period ends, in microseconds.
type bounds [4]int64

// CalendarOf returns the Calendar of a unit and zone. It returns nil for an empty unit
// and an error for a name that zone.Load refuses.
func CalendarOf(unit Unit, name string) (*Calendar, error) { return calendars.of(unit, name) }

// maxZones is the largest number of zones in the cache. The database has 600 names, which
// take about 2 kB each.
const maxZones = 1024

var calendars = newCalendarCache(maxZones)

// calendarCache has the calendars of the most recently used zones, by name.
type calendarCache struct {
	zones *lru.Cache[string, *[4]Calendar]
}

// newCalendarCache returns a cache of at most size zones, at least 1.
func newCalendarCache(size int) calendarCache {
	zones, err := lru.New[string, *[4]Calendar](size)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return calendarCache{zones}
}

func (c calendarCache) of(unit Unit, name string) (*Calendar, error) {
	if unit == "" {
		return nil, nil
	}
	all, known := c.zones.Get(name)
	if !known {
		location, err := zone.Load(name)
		if err != nil {
			return nil, err
		}
		name = strings.Clone(name) // it may be a part of a large text
		all = &[4]Calendar{{unit: Hour, zone: location}, {unit: Day, zone: location}, {unit: Week, zone: location}, {unit: Month, zone: location}}
		if before, already, _ := c.zones.PeekOrAdd(name, all); already {
			all = before
		}
	}
	for i := range all {
		if all[i].unit == unit {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("there is no calendar %q", string(unit))
}

// around returns the ends of four periods, b, with b[1] <= at < b[2].
func (c *Calendar) around(at int64) *bounds {
	if b := c.last.Load(); b != nil && b[1] <= at && at < b[2] {
		return b
	}
	// From two longest periods before at there are at least two ends up to at.
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

// endOf returns the end of the period of at.
func (c *Calendar) endOf(at int64) int64 { return c.around(at)[2] }

// Near returns the edges of two successive periods for a statement whose clock will read
// about at: from, the turn between them, and until. at is not close to either outer edge.
func (c *Calendar) Near(at int64) (from, turn, until int64) {
	b := c.around(at)
	if at-b[1] < b[2]-at {
		return b[0], b[1], b[2]
	}
	return b[1], b[2], b[3]
}

// end computes the end of the period of at.
func (c *Calendar) end(at int64) int64 {
	local := time.UnixMicro(at).In(c.zone)
	if c.unit == Hour {
		return c.hourEnd(at, local)
	}
	for date := local; ; {
		date = c.unit.next(date)
		// After a clock was set back over midnight, the local date may be one that
		// has ended before.
		if start := c.start(date); start > at {
			return start
		}
	}
}

// DayEnd returns the end of a date in a zone: the first moment with a later local date.
func DayEnd(year int, month time.Month, day int, zone *time.Location) time.Time {
	c := Calendar{unit: Day, zone: zone}
	return time.UnixMicro(c.start(time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC))).In(zone)
}

// next returns the first date of the period after that of date.
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

// start returns the first moment whose local date is that of midnight, which is in UTC,
// or a later one. It does not use time.Date, which may return either side of a midnight
// that does not occur or occurs twice.
func (c *Calendar) start(midnight time.Time) int64 {
	reading := midnight.UnixMicro()
	// Start before any zone has that date, and go from one offset to the next.
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

// hourEnd returns the next whole hour, or the next change of the offset if that is
// earlier.
func (c *Calendar) hourEnd(at int64, local time.Time) int64 {
	was := offset(local)
	reading := at + was
	whole := at + hourUs - mod(reading, hourUs)
	for {
		end, ok := steadyUntil(local)
		if !ok || end >= whole {
			return whole
		}
		// Not every bound of a zone changes its offset.
		local = time.UnixMicro(end).In(c.zone)
		if offset(local) != was {
			return end
		}
	}
}

// offset returns how far a local clock is ahead of UTC.
func offset(local time.Time) int64 {
	_, seconds := local.Zone()
	return int64(seconds) * int64(time.Second/time.Microsecond)
}

// steadyUntil returns a time until which the offset does not change, and false if it
// never changes again.
func steadyUntil(local time.Time) (int64, bool) {
	_, end := local.ZoneBounds()
	if end.IsZero() {
		return 0, false
	}
	if !end.After(local) {
		// After the zone's last known change ZoneBounds ends a year at 365 days, so the
		// last day of a leap year is after that end. It has no change.
		end = time.Date(local.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return end.UnixMicro(), true
}

// mod returns the remainder, never negative.
func mod(a, b int64) int64 { return ((a % b) + b) % b }
