package commands

import (
	"strings"
	"testing"
	"time"
)

// TestParseMoment: a time of day is the last one, and a moment has passed.
func TestParseMoment(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("here", 2*3600)
	now := time.Date(2027, 3, 1, 14, 2, 30, 0, zone)
	for text, want := range map[string]string{
		"14:02":                "2027-03-01T14:02:00+02:00",
		"14:02:30":             "2027-03-01T14:02:30+02:00",
		"14:03":                "2027-02-28T14:03:00+02:00",
		"2027-01-31 14:02":     "2027-01-31T14:02:00+02:00",
		"2027-01-31 14:02:03":  "2027-01-31T14:02:03+02:00",
		"2027-01-31T14:02:00Z": "2027-01-31T14:02:00Z",
		"2027-03-01 14:03":     "is in the future",
		"25:00":                "use a time such as 14:02",
		"yesterday":            "use a time such as 14:02",
		"":                     "use a time such as 14:02",
	} {
		at, err := parseMoment(text, now)
		if got := at.Format(time.RFC3339); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
}
