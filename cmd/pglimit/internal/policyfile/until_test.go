package policyfile

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/policies"
)

// TestParseUntil: days are read as their end in the caller's zone, also where a clock changes,
// and shown as they are written.
func TestParseUntil(t *testing.T) {
	t.Parallel()
	vienna := must.OK(time.LoadLocation("Europe/Vienna"))(t)
	now := time.Date(2026, 10, 22, 15, 4, 5, 6, vienna) // a Thursday; summer time ends on Sunday
	for text, want := range map[string]struct{ end, shown string }{
		"2026-11-27":                {"2026-11-28T00:00:00+01:00", "2026-11-27"},
		"2026-10-25":                {"2026-10-26T00:00:00+01:00", "2026-10-25"},
		"2026-10-22":                {"2026-10-23T00:00:00+02:00", "2026-10-22"}, // today
		"today":                     {"2026-10-23T00:00:00+02:00", "2026-10-22"},
		"Tomorrow":                  {"2026-10-24T00:00:00+02:00", "2026-10-23"},
		"thursday":                  {"2026-10-23T00:00:00+02:00", "2026-10-22"},
		"friday":                    {"2026-10-24T00:00:00+02:00", "2026-10-23"},
		"Sun":                       {"2026-10-26T00:00:00+01:00", "2026-10-25"},
		"wednesday":                 {"2026-10-29T00:00:00+01:00", "2026-10-28"},
		"30d":                       {"2026-11-21T14:04:05+01:00", "2026-11-21T14:04:05+01:00"},
		"2026-11-27T18:00:00Z":      {"2026-11-27T19:00:00+01:00", "2026-11-27T19:00:00+01:00"},
		"2026-11-27 18:00":          {"2026-11-27T18:00:00+01:00", "2026-11-27T18:00:00+01:00"},
		"2026-11-27 18:00:01":       {"2026-11-27T18:00:01+01:00", "2026-11-27T18:00:01+01:00"},
		"2026-11-27T00:00:00+01:00": {"2026-11-27T00:00:00+01:00", "2026-11-26"},
	} {
		end, err := ParseUntil(text, now)
		if shown := ShowEnd(end, vienna); err != nil || end.In(vienna).Format(time.RFC3339) != want.end || shown != want.shown {
			t.Errorf("%s: %v, shown as %s, %v; want %+v", text, end, shown, err, want)
		}
	}
	// Where a clock changes at midnight, a day ends at the first moment of the next one.
	for _, c := range [][3]string{
		{"America/Santiago", "2026-09-05", "2026-09-06T01:00:00-03:00"}, {"America/Santiago", "2026-04-04", "2026-04-05T00:00:00-04:00"},
		{"America/Havana", "2027-03-13", "2027-03-14T01:00:00-04:00"}, {"America/Havana", "2026-10-31", "2026-11-01T00:00:00-04:00"},
		{"Asia/Beirut", "2027-03-27", "2027-03-28T01:00:00+03:00"}, {"Africa/Cairo", "2027-04-29", "2027-04-30T01:00:00+03:00"},
	} {
		zone := must.OK(time.LoadLocation(c[0]))(t)
		day := must.OK(time.Parse(time.DateOnly, c[1]))(t).Add(12 * time.Hour).In(zone)
		for _, text := range []string{c[1], "today", day.Weekday().String()} {
			if end, err := ParseUntil(text, day); err != nil || end.In(zone).Format(time.RFC3339) != c[2] || ShowEnd(end, zone) != c[1] {
				t.Errorf("%s in %s: %v, shown as %s, %v; want %s", text, c[0], end.In(zone), ShowEnd(end, zone), err, c[2])
			}
		}
	}
	for text, want := range map[string]string{
		"0001-01-01T00:00:00Z": "must be after 1970-01-01", "2026-10-21": "that has passed", "2020-01-01": "that has passed", "0": "that has passed", "-1d": "that has passed", "2026-10-22 15:04": "that has passed",
		"2027-02-29": "use a date such as", "someday": ", or friday, or 30d", "fr": "use a date", "": "use a date", "30": "use a date",
	} {
		if end, err := ParseUntil(text, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %s", text, end, err, want)
		}
	}
}

// TestDropEnded: a file's overrides that have ended are left out, as they are by export.
func TestDropEnded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := File{Overrides: []policies.Override{{Key: "none"}, {Key: "ended", Until: now}, {Key: "later", Until: now.Add(1)}}}
	if n := f.DropEnded(now); n != 1 || len(f.Overrides) != 2 || f.Overrides[0].Key != "none" || f.Overrides[1].Key != "later" {
		t.Errorf("%d: %+v", n, f)
	}
}

// FuzzParseEnd: a time is read as written, to the nanosecond, and a date as the end of its
// day. What is shown is read as the same moment, to the second.
func FuzzParseEnd(f *testing.F) {
	for _, text := range []string{"", "2027-01-31", "2027-02-29", "2028-02-29", "2027-01-31T18:00:00Z", "2027-01-31T18:00:00+14:00", "2027-01-31 18:00:00", "2027-1-31", "0000-01-01", "9999-12-31T23:59:59.999999999-23:59", "tomorrow", "1d", "2027-01-31T24:00:00Z"} {
		f.Add(text, int64(len(text))*1e17)
	}
	f.Fuzz(func(t *testing.T, text string, ns int64) {
		at := time.Unix(0, ns).UTC()
		for _, written := range []string{at.Format(time.RFC3339Nano), at.In(time.FixedZone("", 5400)).Format(time.RFC3339Nano)} {
			if got, err := ParseEnd(written, time.UTC); err != nil || !got.Equal(at) {
				t.Errorf("%s is read as %v, %v", written, got, err)
			}
		}
		if got, err := ParseEnd(at.Format(time.DateOnly), time.UTC); err != nil || !got.Equal(at.Truncate(24*time.Hour).Add(24*time.Hour)) {
			t.Errorf("%s is read as %v, %v", at.Format(time.DateOnly), got, err)
		}
		got, err := ParseEnd(text, time.UTC)
		if err != nil {
			if !got.IsZero() || !strings.Contains(err.Error(), "such as 2027-01-31") {
				t.Errorf("%q: %v, %v", text, got, err)
			}
			return
		}
		shown := ShowEnd(got, time.UTC)
		if again, err := ParseEnd(shown, time.UTC); got.Year() > 0 && got.Year() < 9999 && (err != nil || !again.Equal(got.Truncate(time.Second))) {
			t.Errorf("%q is read as %v, shown as %s, and read as %v, %v", text, got, shown, again, err)
		}
	})
}
