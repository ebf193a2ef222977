package algorithm

import (
	"errors"
	"time"
)

// Anchor is a reading of a local clock at which a period begins, and from which all others
// of a calendar follow.
type Anchor struct{ at int64 } // microseconds, as if it were UTC

// firstAnchor is the anchor of the calendars that people hang up: a Monday, and the first day
// of a year.
var firstAnchor = Anchor{time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()}

// AnchorOf reads the anchor of a policy: empty for firstAnchor, a date, or a date and time. The
// error is what the text must be.
func AnchorOf(text string) (Anchor, error) {
	if text == "" {
		return firstAnchor, nil
	}
	layout := "2006-01-02T15:04"
	if len(text) == len(time.DateOnly) {
		layout = time.DateOnly
	}
	at, err := time.Parse(layout, text)
	if err != nil || at.Year() < 1000 || at.Format(layout) != text { // Parse reads an hour of one digit too
		return Anchor{}, errors.New("must be a date such as 2024-01-31, or a date and time such as 2024-01-31T09:30, from the year 1000 on")
	}
	return Anchor{at.UnixMicro()}, nil
}

// pattern is what the periods of a unit take from an anchor. Anchors of one pattern are alike.
type pattern struct {
	step   int64 // between two begins on the local clock, in microseconds; 0 for months
	phase  int64 // of the begins in step; for months the time of day
	months int   // between two begins
	month  int   // of the begins in months
	day    int   // of a month; its last day if it has fewer
}

func (a Anchor) pattern(u Unit) pattern {
	switch u {
	case Hour:
		return pattern{step: hourUs, phase: mod(a.at, hourUs)}
	case Day:
		return pattern{step: dayUs, phase: mod(a.at, dayUs)}
	case Week:
		return pattern{step: 7 * dayUs, phase: mod(a.at, 7*dayUs)}
	}
	p := pattern{phase: mod(a.at, dayUs), months: 1}
	switch u {
	case Quarter:
		p.months = 3
	case Year:
		p.months = 12
	}
	_, m, d := time.UnixMicro(a.at).UTC().Date()
	p.month, p.day = (int(m)-1)%p.months, d
	return p
}

// next returns the reading of the first begin after a reading.
func (p *pattern) next(reading int64) int64 {
	if p.step > 0 {
		return reading + p.step - mod(reading-p.phase, p.step)
	}
	y, m, _ := time.UnixMicro(reading).UTC().Date()
	month := int(m) - 1
	month -= (month - p.month + p.months) % p.months
	if begin := p.begin(y, month); begin > reading {
		return begin
	}
	return p.begin(y, month+p.months)
}

// begin returns the reading at which the period of a month begins, counted from 0 on. Each
// is computed from the pattern, so that a short month does not move the next ones.
func (p *pattern) begin(year, month int) int64 {
	last := time.Date(year, time.Month(month+2), 0, 0, 0, 0, 0, time.UTC)
	return last.UnixMicro() - dayUs*int64(max(0, last.Day()-p.day)) + p.phase
}
