package policyfile

import (
	"errors"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
)

// ParseEnd reads the end of an override in a file, in now's zone: a date is the end of that
// day. The error does not quote the text.
func ParseEnd(text string, zone *time.Location) (time.Time, error) {
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return algorithm.DayEnd(day.Year(), day.Month(), day.Day(), zone), nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		if at.Unix() < 0 { // that of year 1 would be no end
			return at, errors.New("must be after 1970-01-01, in UTC")
		}
		return at, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", time.DateTime} {
		if at, err := time.ParseInLocation(layout, text, zone); err == nil {
			return at, nil
		}
	}
	return time.Time{}, errors.New("use a date such as 2027-01-31, which is the end of that day, or a time such as 2027-01-31T18:00:00Z or \"2027-01-31 18:00\"")
}

// ParseUntil reads the end of an override as ParseEnd does, and today, tomorrow, a weekday,
// which is the end of the next one, today included, and a time from now such as 30d. An end
// that has passed is an error.
func ParseUntil(text string, now time.Time) (time.Time, error) {
	end, err := ParseEnd(text, now.Location())
	word := strings.ToLower(text)
	if d, wrong := duration.Parse(text); wrong == nil {
		end, err = now.Add(d).Truncate(time.Second), nil
	} else if days, ok := daysUntil(word, now.Weekday()); ok {
		end, err = algorithm.DayEnd(now.Year(), now.Month(), now.Day()+days, now.Location()), nil
	}
	switch {
	case err != nil:
		return end, errors.New(err.Error() + ", or friday, or 30d")
	case !end.After(now):
		return end, errors.New("that has passed: give a later end, or leave it out for none")
	}
	return end, nil
}

// daysUntil returns the days from today to the day that word names.
func daysUntil(word string, today time.Weekday) (days int, ok bool) {
	switch word {
	case "today":
		return 0, true
	case "tomorrow":
		return 1, true
	}
	for days := range 7 {
		name := strings.ToLower(((today + time.Weekday(days)) % 7).String())
		if word == name || word == name[:3] {
			return days, true
		}
	}
	return 0, false
}

// ShowEnd returns the end of an override in zone, in a form that ParseEnd reads: the date if
// it is the end of a day, else a time.
func ShowEnd(end time.Time, zone *time.Location) string {
	end = end.In(zone)
	last := time.Date(end.Year(), end.Month(), end.Day()-1, 0, 0, 0, 0, time.UTC)
	if end.Equal(algorithm.DayEnd(last.Year(), last.Month(), last.Day(), zone)) {
		return last.Format(time.DateOnly)
	}
	return end.Format(time.RFC3339)
}
