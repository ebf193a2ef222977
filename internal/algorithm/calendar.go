package algorithm

import (
	"errors"
	"fmt"
	"slices"
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
	Hour    Unit = "hour"
	Day     Unit = "day"
	Week    Unit = "week"
	Month   Unit = "month"
	Quarter Unit = "quarter"
	Year    Unit = "year"
)

// Units are all of them, in the order of their length.
var Units = []Unit{Hour, Day, Week, Month, Quarter, Year}

// Microseconds of a clock.
const (
	hourUs = int64(time.Hour / time.Microsecond)
	dayUs  = 24 * hourUs
)

// Longest returns an upper bound for the unit's periods, in microseconds, whatever their
// anchor. No clock was ever set by more than a day, when the date line moved. It is 0 for an
// unknown unit.
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
	case Quarter:
		return 93 * dayUs
	case Year:
		return 367 * dayUs
	}
	return 0
}

// Calendar computes the ends of periods in one zone, for the statements and the in-memory
// limiter. While it is in the cache, there is one value for a unit, zone and pattern, so that
// rules can be compared. Rules that differ only in the value decide alike.
type Calendar struct {
	unit    Unit
	pattern pattern
	zone    *time.Location
	last    atomic.Pointer[bounds]
}

// bounds are four successive period ends, in microseconds.
type bounds [4]int64

// CalendarOf returns the Calendar of a unit, zone and anchor. It returns nil for an empty unit
// and an error for a name that zone.Load refuses.
func CalendarOf(unit Unit, name string, a Anchor) (*Calendar, error) {
	return calendars.of(unit, name, a)
}

// maxZones is the largest number of zones in the cache. The database has 600 names, which
// take about 2 kB each. maxCalendars is that of calendars, of about 250 bytes: a zone has 31
// for months that begin at midnight, and 600,000 for years that begin at any minute.
const (
	maxZones     = 1024
	maxCalendars = 8192
)

var calendars = newCalendarCache(maxZones, maxCalendars)

// calendarCache has the most recently used zones, by name, and calendars.
type calendarCache struct {
	zones     *lru.Cache[string, *time.Location]
	calendars *lru.Cache[calendarID, *Calendar]
}

// calendarID is what a Calendar is computed from.
type calendarID struct {
	unit    Unit
	zone    string
	pattern pattern
}

// newCalendarCache returns a cache of at most zones zones and all calendars, each at least 1.
func newCalendarCache(zones, all int) calendarCache {
	z, err := lru.New[string, *time.Location](zones)
	c, err2 := lru.New[calendarID, *Calendar](all)
	if err := errors.Join(err, err2); err != nil {
		panic(err) // only for a size below 1
	}
	return calendarCache{z, c}
}

func (c calendarCache) of(unit Unit, name string, a Anchor) (*Calendar, error) {
	if unit == "" {
		return nil, nil
	}
	i := slices.Index(Units, unit)
	if i < 0 {
		return nil, fmt.Errorf("there is no calendar %q", string(unit))
	}
	id := calendarID{Units[i], name, a.pattern(unit)}
	if known, ok := c.calendars.Get(id); ok {
		return known, nil
	}
	id.zone = strings.Clone(name) // it may be a part of a large text
	location, ok := c.zones.Get(name)
	if !ok {
		var err error
		if location, err = zone.Load(name); err != nil {
			return nil, err
		}
		c.zones.Add(id.zone, location)
	}
	made := &Calendar{unit: id.unit, pattern: id.pattern, zone: location}
	if before, already, _ := c.calendars.PeekOrAdd(id, made); already {
		return before, nil
	}
	return made, nil
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
	for reading := at + offset(local); ; {
		reading = c.pattern.next(reading)
		// After a clock was set back over a period's begin, it shows a period that has
		// ended before.
		if start := start(reading, c.zone); start > at {
			return start
		}
	}
}

// DayEnd returns the end of a date in a zone: the first moment with a later local date.
func DayEnd(year int, month time.Month, day int, zone *time.Location) time.Time {
	return time.UnixMicro(start(time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC).UnixMicro(), zone)).In(zone)
}

// start returns the first moment at which a zone's clock shows that reading, as if it were
// UTC, or a later one. It does not use time.Date, which may return either side of a reading
// that does not occur or occurs twice.
func start(reading int64, zone *time.Location) int64 {
	// Start before any zone has that date, and go from one offset to the next.
	for at := reading - 26*hourUs; ; {
		local := time.UnixMicro(at).In(zone)
		at = max(at, reading-offset(local))
		end, ok := steadyUntil(local)
		if !ok || at < end {
			return at
		}
		at = end
	}
}

// hourEnd returns the next hour of the pattern, or the next change of the offset if that is
// earlier.
func (c *Calendar) hourEnd(at int64, local time.Time) int64 {
	was := offset(local)
	reading := at + was
	whole := c.pattern.next(reading) - was
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
