package algorithm

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/must"
)

func mustCalendar(t testing.TB, unit Unit, zone, anchor string) *Calendar {
	t.Helper()
	a, err := AnchorOf(anchor)
	c, err2 := CalendarOf(unit, zone, a)
	must.Succeed(t, errors.Join(err, err2))
	return c
}

func mustTime(t testing.TB, text string) time.Time {
	t.Helper()
	at := must.OK(time.Parse("2006-01-02 15:04:05Z07:00", text))(t)
	return at
}

// TestCalendarBounds computes successive period ends from a moment on.
func TestCalendarBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		about string
		unit  Unit
		zone  string
		from  string
		ends  []string
	}{
		{"UTC by default", Day, "", "2026-01-01 00:00:00Z", []string{"2026-01-02 00:00:00Z", "2026-01-03 00:00:00Z"}},
		{"a leap February", Month, "", "2024-02-10 00:00:00Z", []string{"2024-03-01 00:00:00Z", "2024-04-01 00:00:00Z"}},
		{"another February", Month, "", "2025-02-28 23:59:59Z", []string{"2025-03-01 00:00:00Z"}},
		{"no leap in 2100", Month, "", "2100-02-10 00:00:00Z", []string{"2100-03-01 00:00:00Z"}},
		{"a leap day", Day, "Europe/Vienna", "2024-02-28 12:00:00+01:00", []string{"2024-02-29 00:00:00+01:00", "2024-03-01 00:00:00+01:00"}},
		{"the months of a year's end", Month, "Europe/Vienna", "2025-11-30 23:59:59+01:00",
			[]string{"2025-12-01 00:00:00+01:00", "2026-01-01 00:00:00+01:00", "2026-02-01 00:00:00+01:00"}},
		{"a week across a year's end", Week, "Europe/Vienna", "2025-12-29 00:00:00+01:00", []string{"2026-01-05 00:00:00+01:00", "2026-01-12 00:00:00+01:00"}},
		{"before 1970", Week, "", "1969-12-31 00:00:00Z", []string{"1970-01-05 00:00:00Z"}},

		{"Vienna, spring", Hour, "Europe/Vienna", "2025-03-30 00:30:00+01:00",
			[]string{"2025-03-30 01:00:00+01:00", "2025-03-30 03:00:00+02:00", "2025-03-30 04:00:00+02:00"}},
		{"Vienna, autumn: 2 to 3 is twice", Hour, "Europe/Vienna", "2025-10-26 01:30:00+02:00",
			[]string{"2025-10-26 02:00:00+02:00", "2025-10-26 02:00:00+01:00", "2025-10-26 03:00:00+01:00", "2025-10-26 04:00:00+01:00"}},
		{"Vienna, spring: 23 hours", Day, "Europe/Vienna", "2025-03-30 00:00:00+01:00", []string{"2025-03-31 00:00:00+02:00"}},
		{"Vienna, autumn: 25 hours", Day, "Europe/Vienna", "2025-10-26 00:00:00+02:00", []string{"2025-10-27 00:00:00+01:00"}},

		{"Havana, spring: 0:00 is 1:00", Day, "America/Havana", "2024-03-09 12:00:00-05:00",
			[]string{"2024-03-10 01:00:00-04:00", "2024-03-11 00:00:00-04:00"}},
		{"Havana, spring", Hour, "America/Havana", "2024-03-09 23:10:00-05:00",
			[]string{"2024-03-10 01:00:00-04:00", "2024-03-10 02:00:00-04:00"}},
		{"Havana, autumn: 0:00 is twice", Day, "America/Havana", "2024-11-02 12:00:00-04:00",
			[]string{"2024-11-03 00:00:00-04:00", "2024-11-04 00:00:00-05:00"}},
		{"Havana, autumn", Hour, "America/Havana", "2024-11-02 23:59:59-04:00",
			[]string{"2024-11-03 00:00:00-04:00", "2024-11-03 00:00:00-05:00", "2024-11-03 01:00:00-05:00"}},

		{"Lord Howe, spring: 2:00 is 2:30", Hour, "Australia/Lord_Howe", "2024-10-06 01:15:00+10:30",
			[]string{"2024-10-06 02:30:00+11:00", "2024-10-06 03:00:00+11:00", "2024-10-06 04:00:00+11:00"}},
		{"Lord Howe, autumn: 2:00 is 1:30", Hour, "Australia/Lord_Howe", "2024-04-07 01:45:00+11:00",
			[]string{"2024-04-07 02:00:00+11:00", "2024-04-07 02:00:00+10:30", "2024-04-07 03:00:00+10:30"}},
		{"Lord Howe, spring: 23.5 hours", Day, "Australia/Lord_Howe", "2024-10-06 00:00:00+10:30", []string{"2024-10-07 00:00:00+11:00"}},
		{"Lord Howe, autumn: 24.5 hours", Day, "Australia/Lord_Howe", "2024-04-07 00:00:00+11:00", []string{"2024-04-08 00:00:00+10:30"}},

		{"Sao Paulo, back from 0:00 to 23:00", Day, "America/Sao_Paulo", "2018-02-17 12:00:00-02:00",
			[]string{"2018-02-18 00:00:00-03:00", "2018-02-19 00:00:00-03:00"}},
		{"St. John's, back from 0:01 to 23:01 of a day that is over", Day, "America/St_Johns", "2010-11-06 12:00:00-02:30",
			[]string{"2010-11-07 00:00:00-02:30", "2010-11-08 00:00:00-03:30"}},
		{"St. John's, within that hour", Day, "America/St_Johns", "2010-11-06 23:30:00-03:30", []string{"2010-11-08 00:00:00-03:30"}},
		{"St. John's, by the hour", Hour, "America/St_Johns", "2010-11-06 23:30:00-02:30",
			[]string{"2010-11-07 00:00:00-02:30", "2010-11-06 23:01:00-03:30", "2010-11-07 00:00:00-03:30", "2010-11-07 01:00:00-03:30"}},
		{"Asuncion, a month whose first midnight is missing", Month, "America/Asuncion", "2017-09-15 00:00:00-04:00",
			[]string{"2017-10-01 01:00:00-03:00", "2017-11-01 00:00:00-03:00"}},
		{"Apia, a day that was left out", Day, "Pacific/Apia", "2011-12-29 12:00:00-10:00",
			[]string{"2011-12-31 00:00:00+14:00", "2012-01-01 00:00:00+14:00"}},
		{"Chatham: the year of UTC ends in the middle of an hour", Hour, "Pacific/Chatham", "2039-12-31 23:50:00Z",
			[]string{"2040-01-01 00:15:00Z", "2040-01-01 01:15:00Z"}},
		{"Chatham: the last day of a leap year", Hour, "Pacific/Chatham", "2096-12-31 12:00:00Z", []string{"2096-12-31 12:15:00Z"}},
		{"Chatham: the last day of a leap year", Day, "Pacific/Chatham", "2096-12-31 12:00:00Z", []string{"2097-01-01 10:15:00Z", "2097-01-02 10:15:00Z"}},
		{"Vienna: the month after a leap year", Month, "Europe/Vienna", "2096-12-31 12:00:00Z", []string{"2096-12-31 23:00:00Z"}},
	} {
		calendar := mustCalendar(t, c.unit, c.zone, "")
		at := mustTime(t, c.from).UnixMicro()
		for _, want := range c.ends {
			w := mustTime(t, want).UnixMicro()
			show := func(us int64) string { return time.UnixMicro(us).In(calendar.zone).Format(time.RFC3339Nano) }
			if end, found := calendar.endOf(at), calendar.end(at); end != w || found != w {
				t.Errorf("%s, %s of %s: ends at %s and %s, want %s", c.about, c.unit, show(at), show(end), show(found), show(w))
			}
			at = w
		}
	}
}

// zonesToTry have changes of all kinds: over midnight both ways, by half and by
// whole hours, by days, twice a year, once and never.
var zonesToTry = []string{
	"", "Europe/Vienna", "America/Havana", "Australia/Lord_Howe", "America/St_Johns", "America/Sao_Paulo", "America/Asuncion",
	"Pacific/Apia", "Pacific/Kwajalein", "Pacific/Chatham", "Asia/Kathmandu", "Asia/Tehran", "Asia/Gaza", "Asia/Beirut", "Asia/Amman",
	"Africa/Casablanca", "Africa/Cairo", "America/Nuuk", "America/Caracas", "America/Santiago", "Antarctica/Troll", "Asia/Pyongyang",
	"Europe/Dublin", "Europe/Samara", "Atlantic/Azores", "America/Scoresbysund", "Antarctica/Macquarie",
}

// TestCalendarsPartitionTime draws moments of 1973 to 2120, half of them about a change
// of a clock. Each is in exactly one period, which is no longer than Longest. Its end
// equals the one that a walk minute by minute finds, and the edges for statements agree.
func TestCalendarsPartitionTime(t *testing.T) {
	t.Parallel()
	first, last := mustTime(t, "1973-01-01 00:00:00Z").UnixMicro(), mustTime(t, "2120-01-01 00:00:00Z").UnixMicro()
	rapid.Check(t, func(rt *rapid.T) {
		anchor := ""
		if rapid.Bool().Draw(rt, "anchored") {
			anchor = time.Unix(60*rapid.Int64Range(-40e6, 100e6).Draw(rt, "anchor"), 0).UTC().Format("2006-01-02T15:04") // 1893 to 2160
		}
		c := mustCalendar(t, rapid.SampledFrom(Units).Draw(rt, "calendar"), rapid.SampledFrom(zonesToTry).Draw(rt, "zone"), anchor)
		at := rapid.Int64Range(first, last).Draw(rt, "at")
		if _, change := time.UnixMicro(at).In(c.zone).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(rt, "about a change") {
			at = change.UnixMicro() + rapid.Int64Range(-c.unit.Longest(), c.unit.Longest()).Draw(rt, "by")
		}
		show := func(us int64) string { return time.UnixMicro(us).In(c.zone).Format(time.RFC3339Nano) }
		b := c.around(at)
		if !(b[0] < b[1] && b[1] <= at && at < b[2] && b[2] < b[3]) {
			rt.Fatalf("around %s: %s, %s, %s, %s", show(at), show(b[0]), show(b[1]), show(b[2]), show(b[3]))
		}
		for i, end := range b[1:] {
			start := b[i]
			if end-start > c.unit.Longest() {
				rt.Errorf("from %s to %s is longer than Longest", show(start), show(end))
			}
			within := rapid.Int64Range(start, end-1).Draw(rt, "within")
			for _, moment := range []int64{start, within, end - 1} {
				if got := c.end(moment); got != end {
					rt.Errorf("%s is in a period to %s, and to %s", show(moment), show(got), show(end))
				}
			}
			if got := walk(c, anchor, end); got != end {
				rt.Errorf("a period ends at %s, a walk finds %s", show(end), show(got))
			}
		}
		from, turn, until := c.Near(at)
		if from > at || at >= until || c.end(from) != turn || c.end(turn) != until || min(at-from, until-at) < min((b[2]-b[1])/2, b[1]-b[0], b[3]-b[2]) {
			rt.Errorf("at %s the edges for a statement are %s, %s, %s", show(at), show(from), show(turn), show(until))
		}
	})
}

// walk finds a period's end using only local clock readings: it goes on in steps of a
// minute up to the end and a little further, and returns the last end it met.
func walk(c *Calendar, anchor string, end int64) (found int64) {
	const minute = hourUs / 60
	origin, _ := time.Parse("2006-01-02T15:04", cmp.Or(anchor, "2024-01-01T00:00"))
	back := 3 * dayUs
	if c.unit == Hour {
		back = hourUs
	}
	var latest time.Time // the latest reading so far, as if it were UTC
	var before time.Duration
	for at := end - end%minute - back; at <= end; at += minute {
		local := time.UnixMicro(at).In(c.zone)
		ahead := time.Duration(offset(local)) * time.Microsecond
		reading := time.UnixMicro(at).UTC().Add(ahead)
		switch {
		case latest.IsZero():
			latest = reading
		case c.unit == Hour:
			if ahead != before || reading.Minute() == origin.Minute() {
				found = at
			}
		case reading.After(latest):
			if period(c.unit, origin, reading) != period(c.unit, origin, latest) {
				found = at
			}
			latest = reading
		}
		before = ahead
	}
	return found
}

// period returns how many periods after that of an anchor a reading's is.
func period(unit Unit, anchor, reading time.Time) (n int) {
	if days := map[Unit]int{Day: 1, Week: 7}[unit]; days > 0 {
		return int(math.Floor(reading.Sub(anchor).Hours() / 24 / float64(days)))
	}
	months := map[Unit]int{Month: 1, Quarter: 3, Year: 12}[unit]
	begin := func(n int) time.Time { // AddDate goes on in the next month where a day is missing
		first := time.Date(anchor.Year(), anchor.Month(), 1, anchor.Hour(), anchor.Minute(), 0, 0, time.UTC).AddDate(0, n*months, 0)
		for day := anchor.Day() - 1; ; day-- {
			if at := first.AddDate(0, 0, day); at.Month() == first.Month() {
				return at
			}
		}
	}
	n = int(reading.Sub(anchor).Hours() / 24 / 30.44 / float64(months))
	for begin(n).After(reading) {
		n--
	}
	for !begin(n + 1).After(reading) {
		n++
	}
	return n
}

// TestPeriods: periods from an anchor end where testdata/periods.json says, and all moments of
// one end there. TestFunctionsEndPeriods holds SQL to the same.
func TestPeriods(t *testing.T) {
	t.Parallel()
	var all []struct {
		About, Calendar, From, Anchor string
		TimeZone                      string `json:"time_zone"`
		Ends                          []string
	}
	data, err := os.ReadFile("../../testdata/periods.json")
	if err := errors.Join(err, json.Unmarshal(data, &all)); err != nil || len(all) < 40 {
		t.Fatal(len(all), err)
	}
	for _, c := range all {
		calendar := mustCalendar(t, Unit(c.Calendar), c.TimeZone, c.Anchor)
		at := mustTime(t, c.From).UnixMicro()
		for _, want := range c.Ends {
			w := mustTime(t, want).UnixMicro()
			for _, moment := range []int64{at, at + (w-at)/2, w - 1} {
				if end, found := calendar.endOf(moment), calendar.end(moment); end != w || found != w {
					t.Errorf("%s by %s, %s: ends at %s and %s, want %s", c.About, c.Calendar, time.UnixMicro(moment).In(calendar.zone), time.UnixMicro(end).In(calendar.zone), time.UnixMicro(found).In(calendar.zone), want)
				}
			}
			at = w
		}
	}
}

// TestAnchors: an anchor that is no date is refused, and those of one pattern are one calendar.
func TestAnchors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"31", "2024-02-30", "2023-02-29", "2024-13-01", "2024-1-31", "2024-01-31T9:30", "2024-01-31T24:00", "2024-01-31T09:30:00", "2024-01-31T09:30Z", "2024-01-31 09:30", " 2024-01-31", "0999-01-31", "sunday"} {
		if _, err := AnchorOf(text); err == nil || !strings.Contains(err.Error(), "2024-01-31T09:30") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, c := range []struct {
		unit Unit
		a, b string
		same bool
	}{
		{Month, "2024-01-31", "2023-12-31T00:00", true}, {Month, "2024-01-31", "2024-01-30", false}, {Month, "", "2020-05-01", true},
		{Quarter, "2024-01-31", "2023-10-31", true}, {Quarter, "2024-01-31", "2024-02-29", false}, {Year, "2024-01-31", "2023-01-31", true}, {Year, "", "2024-02-01", false},
		{Week, "", "2024-02-05", true}, {Week, "2024-02-04", "2024-02-05", false}, {Day, "2024-02-04T09:30", "1999-01-01T09:30", true}, {Hour, "2024-02-04T09:30", "1999-01-01T10:30", true},
	} {
		if same := mustCalendar(t, c.unit, "Europe/Vienna", c.a) == mustCalendar(t, c.unit, "Europe/Vienna", c.b); same != c.same {
			t.Errorf("%s from %q and %q: one calendar is %v", c.unit, c.a, c.b, same)
		}
	}
}

// TestCalendarIsShared: equal calendars are one value, so that rules can be compared.
// Concurrent use returns the same ends as use by one goroutine.
func TestCalendarIsShared(t *testing.T) {
	t.Parallel()
	c := mustCalendar(t, Day, "America/Havana", "")
	if c != mustCalendar(t, Day, "America/Havana", "") || c == mustCalendar(t, Day, "Europe/Vienna", "") {
		t.Error("equal calendars differ, or different ones do not")
	}
	start := mustTime(t, "2024-11-01 00:00:00Z").UnixMicro()
	var wg sync.WaitGroup
	for g := range int64(8) {
		wg.Go(func() {
			for i := range int64(500) {
				at := start + (i*13+g)*hourUs/7
				if got, want := c.endOf(at), c.end(at); got != want {
					t.Errorf("at %d: %d, alone %d", at, got, want)
				}
			}
		})
	}
	wg.Wait()
}

// TestCalendarCacheIsBounded: thousands of spellings of one zone keep one, and the least
// recently used zone makes room.
func TestCalendarCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := newCalendarCache(2, 7)
	for i := range 8000 {
		for _, spelling := range []string{
			"Europe" + strings.Repeat("/", 1+i%100) + "Paris", strings.Repeat("./", i%2000) + "Europe/Paris",
			"posix/Europe/Paris", "right/Europe/Paris", "europe/PARIS", "localtime", "posixrules", "Factory",
		} {
			if got, err := c.of(Day, spelling, Anchor{}); (err == nil) != (spelling == "Europe/Paris") || (got == nil) != (err != nil) {
				t.Fatalf("%.40q: %v, %v", spelling, got, err)
			}
		}
	}
	if n := c.zones.Len(); n != 1 {
		t.Errorf("%d zones are kept", n)
	}
	for _, name := range []string{"Europe/Oslo", "Europe/Paris", "Europe/Rome"} {
		for _, unit := range Units {
			got, err := c.of(unit, name, Anchor{})
			if err != nil || got.unit != unit || got.zone.String() != name {
				t.Errorf("%s of %s: %+v, %v", unit, name, got, err)
			}
		}
	}
	if names := c.zones.Keys(); !slices.Equal(names, []string{"Europe/Paris", "Europe/Rome"}) {
		t.Errorf("%q are kept", names)
	}
	if n := c.calendars.Len(); n != 7 {
		t.Errorf("%d calendars are kept", n)
	}
}
