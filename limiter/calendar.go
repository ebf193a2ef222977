package limiter

import "github.com/pglimit/pglimit/internal/algorithm"

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
	Hour = Calendar(algorithm.Hour)
	// Day is a local date.
	Day = Calendar(algorithm.Day)
	// Week is seven local dates, from Monday.
	Week = Calendar(algorithm.Week)
	// Month is a month of the local dates.
	Month = Calendar(algorithm.Month)
)

// Calendars returns every calendar, in a fixed order.
func Calendars() []Calendar { return []Calendar{Hour, Day, Week, Month} }

func (c Calendar) known() bool { return algorithm.Unit(c).Longest() != 0 }

// badTimeZone is what is wrong with the zone of a policy that has a known
// calendar.
func badTimeZone(unit Calendar, zone string) string {
	if zone == "Local" {
		return "differs from machine to machine: name the zone, such as Europe/Vienna"
	}
	if _, err := algorithm.CalendarOf(algorithm.Unit(unit), zone); err != nil {
		return `is not known here: take a name of the IANA time zone database, such as Europe/Vienna; if this system has none, import _ "time/tzdata"`
	}
	return ""
}
