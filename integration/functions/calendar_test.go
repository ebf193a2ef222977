package functions

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/zone"
)

// zonesToTry have changes of all kinds: over midnight both ways, by a minute after it, by
// half and by whole hours, by days, twice a year, four times a year, once and never. The
// last are abbreviations in PostgreSQL too.
var zonesToTry = []string{
	"", "Europe/Vienna", "America/Havana", "Australia/Lord_Howe", "America/St_Johns", "America/Sao_Paulo", "America/Asuncion",
	"Pacific/Apia", "Pacific/Kwajalein", "Pacific/Chatham", "Asia/Kathmandu", "Asia/Tehran", "Asia/Gaza", "Asia/Beirut", "Asia/Amman",
	"Africa/Casablanca", "Africa/Cairo", "America/Nuuk", "America/Caracas", "America/Santiago", "Antarctica/Troll", "Asia/Pyongyang",
	"Europe/Dublin", "Europe/Samara", "Atlantic/Azores", "America/Scoresbysund", "Antarctica/Macquarie", "Antarctica/Casey",
	"CET", "MET", "EET", "WET", "EST", "MST", "HST", "GMT", "UTC", "Zulu", "Etc/GMT+5", "PST8PDT", "NZ-CHAT", "W-SU",
}

// anchorsToTry are the default, and one at a time that clocks are set to leave out.
var anchorsToTry = []string{"", "2023-11-30T02:15"}

func calendarOf(t *testing.T, unit algorithm.Unit, zone, anchor string) *algorithm.Calendar {
	t.Helper()
	a, err := algorithm.AnchorOf(anchor)
	c, err2 := algorithm.CalendarOf(unit, zone, a)
	must.Succeed(t, errors.Join(err, err2))
	return c
}

// moments lists the moments of a zone to try, in microseconds: about the changes of its
// clock, around ends of years, and at its periods' ends. Many zones change by one rule for
// decades: by default the first years of a rule are tried, and those after 2037, for which
// the data have no changes but the rule.
func moments(t *testing.T, name string, from, to int) (all []int64, changes []int64) {
	t.Helper()
	location := must.OK(zone.Load(name))(t)
	const second, hour = int64(1_000_000), int64(3600_000_000)
	last := time.Date(to, 1, 1, 0, 0, 0, 0, time.UTC)
	about := []int64{-32 * 24 * hour, -8 * 24 * hour, -25 * hour, -24 * hour, -hour - 1, -hour, -hour / 2, -second, -1, 0, 1, hour/2 - 1, hour, 23*hour - 1, 24 * hour}
	add := func(at time.Time, unit ...algorithm.Unit) {
		us := at.UnixMicro()
		for _, by := range about {
			all = append(all, us+by)
		}
		for _, u := range unit {
			for _, anchor := range anchorsToTry {
				_, turn, until := calendarOf(t, u, name, anchor).Near(us)
				all = append(all, turn-1, turn, until-1, until)
			}
		}
	}
	type change struct {
		month         time.Month
		before, after int
	}
	seen := map[change]int{}
	for at := time.Date(from, 1, 1, 0, 0, 0, 0, time.UTC); at.Before(last); {
		_, end := at.In(location).ZoneBounds()
		if end.IsZero() || !end.Before(last) {
			break
		}
		if !end.After(at) {
			at = at.AddDate(0, 0, 1)
			continue
		}
		at = end
		changes = append(changes, end.Unix())
		c := change{month: end.UTC().Month()}
		_, c.before = end.Add(-time.Second).Zone()
		_, c.after = end.Zone()
		if seen[c]++; seen[c] <= testworld.Size(3, 1000) || end.Year() > 2037 {
			add(end, algorithm.Units...)
		}
	}
	for year := from; year < to; year += testworld.Size(7, 3) {
		add(time.Date(year, 1, 1, 0, 0, 0, 0, location))
		add(time.Date(year, 2, 28, 12, 0, 0, 0, location))
	}
	return all, changes
}

// periodEnds returns where the periods of moments end in SQL.
func periodEnds(t *testing.T, pool *pgxpool.Pool, unit algorithm.Unit, name, anchor string, at []int64) (ends []int64) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT array_agg(pglimit._period_end($1, $2, $3, u.at) ORDER BY u.n) FROM unnest($4::bigint[]) WITH ORDINALITY AS u (at, n)`,
		string(unit), name, anchor, at).Scan(&ends); err != nil {
		t.Fatalf("%s of %q: %v", unit, name, err)
	}
	return ends
}

// sameData reports whether the server's data of a zone has the changes that this program's
// data has, and in each month the same offset: either may be older.
func sameData(t *testing.T, pool *pgxpool.Pool, name string, changes []int64, from, to int) bool {
	t.Helper()
	location := must.OK(zone.Load(name))(t)
	var at, want []int64
	add := func(s int64) {
		_, offset := time.Unix(s, 0).In(location).Zone()
		at, want = append(at, s), append(want, int64(offset))
	}
	for _, change := range changes {
		add(change - 1)
		add(change)
	}
	for month := time.Date(from, 1, 15, 0, 0, 0, 0, time.UTC); month.Year() < to; month = month.AddDate(0, 1, 0) {
		add(month.Unix())
	}
	got := testworld.Value[[]int64](t, pool, `SELECT array_agg(pglimit._local(u.s, pglimit._zone($1)) - u.s ORDER BY u.n) FROM unnest($2::bigint[]) WITH ORDINALITY AS u (s, n)`, name, at)
	return slices.Equal(got, want)
}

// comparePeriods compares the ends of periods in SQL with algorithm.Calendar's, and returns
// how many it compared; 0 if the server has other data of that zone.
func comparePeriods(t *testing.T, pool *pgxpool.Pool, name string, from, to int) (compared int) {
	t.Helper()
	at, changes := moments(t, name, from, to)
	if !sameData(t, pool, name, changes, from, to) {
		t.Logf("the server has other data of %q", name)
		return 0
	}
	at = slices.DeleteFunc(at, func(us int64) bool { return us < 0 }) // before the clocks of decisions
	for i := range len(anchorsToTry) * len(algorithm.Units) {
		unit, anchor := algorithm.Units[i/len(anchorsToTry)], anchorsToTry[i%len(anchorsToTry)]
		c := calendarOf(t, unit, name, anchor)
		for i, got := range periodEnds(t, pool, unit, name, anchor, at) {
			_, turn, until := c.Near(at[i])
			want := turn
			if at[i] >= turn {
				want = until
			}
			compared++
			if got != want {
				t.Errorf("%s of %q from %q: the period of %v ends at %v, in Go at %v", unit, name, anchor, time.UnixMicro(at[i]).UTC(), time.UnixMicro(got).UTC(), time.UnixMicro(want).UTC())
			}
		}
	}
	return compared
}

// TestFunctionsEndPeriodsAsGo compares where periods of calendars end, about every change
// of the clocks of many zones; at full size, of all zones that the server knows.
func TestFunctionsEndPeriodsAsGo(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	zones, from, to := zonesToTry, 2005, 2039
	if testworld.Size(false, true) {
		from, to = 1970, 2101
		for _, name := range testworld.Value[[]string](t, pool, `SELECT array_agg(name ORDER BY name) FROM pg_timezone_names`) {
			if _, err := zone.Load(name); err == nil && !slices.Contains(zones, name) {
				zones = append(zones, name)
			}
		}
	}
	compared, missing, other := 0, 0, 0
	for _, name := range zones {
		_, err := pool.Exec(t.Context(), `SELECT pglimit._local(0, pglimit._zone($1))`, name)
		switch {
		case sqlState(err) == "22023":
			t.Logf("the server has no zone %q", name) // newer packages of zones leave old names out
			missing++
			continue
		case err != nil:
			t.Fatalf("%q: %v", name, err)
		}
		n := comparePeriods(t, pool, name, from, to)
		compared += n
		if n == 0 {
			other++
		}
	}
	t.Logf("%d ends of periods in %d zones", compared, len(zones)-missing-other)
	if other > len(zones)/10 || missing > len(zones)/3 || compared < 50_000 {
		t.Errorf("compared %d ends; of %d zones the server does not have %d, and has other data of %d", compared, len(zones), missing, other)
	}
}

// TestFunctionsEndPeriods: periods from an anchor end in SQL where testdata/periods.json says.
func TestFunctionsEndPeriods(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	var all []struct {
		About, Calendar, From, Anchor string
		TimeZone                      string `json:"time_zone"`
		Ends                          []string
	}
	data, err := os.ReadFile("../testdata/repository/testdata/periods.json")
	if err := errors.Join(err, json.Unmarshal(data, &all)); err != nil || len(all) < 40 {
		t.Fatal(len(all), err)
	}
	for _, c := range all {
		var at, want []int64
		begin := c.From
		for _, end := range c.Ends {
			from, err := time.Parse("2006-01-02 15:04:05Z07:00", begin)
			to, err2 := time.Parse("2006-01-02 15:04:05Z07:00", end)
			must.Succeed(t, errors.Join(err, err2))
			at, want = append(at, from.UnixMicro(), to.UnixMicro()-1), append(want, to.UnixMicro(), to.UnixMicro())
			begin = end
		}
		for i, got := range periodEnds(t, pool, algorithm.Unit(c.Calendar), c.TimeZone, c.Anchor, at) {
			if got != want[i] {
				t.Errorf("%s by %s: the period of %v ends at %v, want %v", c.About, c.Calendar, time.UnixMicro(at[i]).UTC(), time.UnixMicro(got).UTC(), time.UnixMicro(want[i]).UTC())
			}
		}
	}
}

// TestFunctionsZones: a zone that Go refuses is refused, though PostgreSQL reads it as an
// abbreviation, a rule or another spelling.
func TestFunctionsZones(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	for _, name := range []string{"CEST", "cet", "PST", "FOO+3", "Europe/Vienna+3", "+02", "europe/vienna", "<X>-3", "posixrules", "localtime", "Local", "posix/Europe/Vienna", "Europe/Wien",
		"Etc/GMT+20", "Etc/GMT+13", "Etc/GMT-15", "Etc/GMT+05", "Etc/GMT5", "Etc/UTC+5", "Etc/gmt+5", "EUROPE/VIENNA", "Europe/VIENNA", "Us/Pacific", "Factory", "Europe"} {
		if _, err := zone.Load(name); err == nil {
			t.Errorf("Go accepts %q", name)
		}
		_, err := pool.Exec(t.Context(), `SELECT pglimit._period_end('day', $1, '', 0)`, name)
		if code := sqlState(err); code != "22023" {
			t.Errorf("%q: %v", name, err)
		}
	}
	// Every name that Go lists and PostgreSQL knows is accepted, and has the same summer time.
	accepted := 0
	summers := []int64{time.Date(2030, 1, 15, 0, 0, 0, 0, time.UTC).Unix(), time.Date(2030, 7, 15, 0, 0, 0, 0, time.UTC).Unix()}
	for _, name := range testworld.Value[[]string](t, pool, `SELECT array_agg(name) FROM pg_timezone_names`) {
		location, err := zone.Load(name)
		if err != nil {
			continue
		}
		accepted++
		var got, want []int64
		for _, s := range summers {
			_, offset := time.Unix(s, 0).In(location).Zone()
			want = append(want, int64(offset))
		}
		if err := pool.QueryRow(t.Context(), `SELECT array_agg(pglimit._local(s, pglimit._zone($1)) - s ORDER BY s) FROM unnest($2::bigint[]) AS s`, name, summers).Scan(&got); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if !strings.Contains(name, "/") && !slices.Equal(got, want) {
			t.Errorf("%q is %v s ahead in winter and summer, in Go %v s", name, got, want)
		}
	}
	if accepted < 400 {
		t.Errorf("only %d zones", accepted)
	}
}
