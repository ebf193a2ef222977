package decide

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// zones are the time zones of these tests: one with summer time, one whose summer time
// starts and ends at midnight, one with a change of half an hour, one whose clock was set
// back into the day before, and one without changes.
var zones = []string{"Europe/Vienna", "America/Havana", "Australia/Lord_Howe", "America/St_Johns", "America/Scoresbysund", ""}

// calendarPolicies returns one policy of each calendar in each zone.
func calendarPolicies(limit float64) (all []limiter.Policy) {
	for _, zone := range zones {
		for _, calendar := range limiter.Calendars() {
			name := strings.ToLower(strings.ReplaceAll(string(calendar)+"-"+zone, "/", "."))
			all = append(all, limiter.Policy{Name: name, Algorithm: limiter.FixedWindow, Limit: limit, Calendar: calendar, TimeZone: zone})
		}
	}
	return all
}

// changing are histories about clock changes, under plans that change calendar, zone and
// period under one name.
var changing = search.Draw{Zones: zones, Equal: true, Names: 2}

// calendar is the base of those plans.
var calendar = limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Day}

// TestCalendarDecidesAsMemory: statements decide as a limiter in memory across clock
// changes, in and out of transactions. No row expires while it counts.
func TestCalendarDecidesAsMemory(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	d := changing
	d.Operations = search.Without(search.Usual, "sweep")
	t.Run("search", func(t *testing.T) {
		testworld.Search(t, d, 100, func(t *testing.T) func(*search.History) search.Subject {
			return func(*search.History) search.Subject {
				s, config := testworld.NewSubject(t)
				s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
				return s
			}
		}, calendar)
	})
	// At the middle of the windows' ends: only rows whose windows are over are deleted.
	cutoff := testworld.Value[int64](t, pool, "SELECT (percentile_disc(0.5) WITHIN GROUP (ORDER BY ends_at_us)) - 1 FROM pglimit_fixed_window WHERE level > 0")
	const counting = "SELECT count(*) FROM pglimit_fixed_window WHERE level > 0 AND ends_at_us > $1"
	want := testworld.Value[int](t, pool, counting, cutoff)
	testworld.Exec(t, pool, "UPDATE pglimit_fixed_window SET expires_at_us = 0")
	var deleted int64
	testworld.EachShard(t, pool, func(tx db.DBTX) {
		swept, err := db.New().FixedWindowSweep(t.Context(), tx, db.FixedWindowSweepParams{CutoffUs: cutoff, MaxRows: 1e6})
		if err != nil {
			t.Errorf("swept %+v, %v", swept, err)
		}
		deleted += swept.Deleted
	})
	if deleted == 0 {
		t.Error("nothing was swept")
	}
	if n := testworld.Value[int](t, pool, counting, cutoff); n != want || n < 25 {
		t.Errorf("%d rows count after a sweep, %d before", n, want)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_fixed_window AS w WHERE ends_at_us <= $1 AND updated_at_us <= $1 AND blocked_until_us <= $1
			AND NOT EXISTS (SELECT FROM pglimit_reservation AS r WHERE r.policy = w.policy AND r.key = w.key)`, cutoff); n > 0 {
		t.Errorf("%d rows are left whose windows are over", n)
	}
}

// TestCalendarBatch: keys of several zones, calendars and periods share the next
// statement, and each gets the answer of its own calendar.
func TestCalendarBatch(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	testworld.SearchBatches(t, changing, 40, func(t *testing.T, config limiter.Config) *testworld.Gate {
		return testworld.NewGate(t, address, config)
	}, calendar)
}

// TestCalendarOfAPlanThatHadNone: a current window continues to its end, with its count,
// whatever the plan becomes. Then the new plan's windows follow.
func TestCalendarOfAPlanThatHadNone(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	byPeriod := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	byHour := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Hour}
	byDay, anchored := byHour, byHour
	byDay.Calendar = limiter.Day
	anchored.Anchor = "2024-01-31T00:20"
	for _, kind := range []string{"SQL", "memory"} {
		clock := new(conformance.Clock)
		config := &limiter.Config{Now: clock.Now}
		l := limiter.NewMemory(config)
		if kind == "SQL" {
			l = testworld.NewLimiter(t, pool, config)
		}
		for i, step := range []struct {
			minute int64
			plan   limiter.Policy
			cost   float64
			left   float64 // after it
			ends   int64   // the window, in minutes
		}{
			{30, byPeriod, 4, 6, 90},
			{45, byHour, 4, 2, 90}, // not at 60
			{75, byHour, 2, 0, 90},
			{90, byHour, 3, 7, 120},
			{95, anchored, 1, 6, 120},  // not at 80 or 140
			{100, byPeriod, 2, 4, 120}, // not at 160
			{119, byDay, 3, 1, 120},    // not at 24 h
			{120, byDay, 3, 7, 24 * 60},
			{130, byPeriod, 3, 4, 24 * 60}, // not at 190
			{24 * 60, byPeriod, 1, 9, 25 * 60},
			{25 * 60, anchored, 1, 9, 25*60 + 20}, // a short one, until it is in step
			{25*60 + 20, anchored, 1, 9, 26*60 + 20},
		} {
			clock.Set(step.minute * 60_000_000)
			r := testworld.Must(t)(l.AllowN(t.Context(), step.plan, "k", step.cost))
			if ends := step.minute + int64(r.ResetAfter/time.Minute); !r.Allowed || r.Remaining != step.left || ends != step.ends {
				t.Errorf("%s, step %d: ends at minute %d, want %d with %v left: %+v", kind, i, ends, step.ends, step.left, r)
			}
		}
	}
}
