package bound

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
)

// start is a whole multiple of a minute since 1970.
var start = time.Date(2026, 3, 27, 22, 58, 0, 0, time.UTC)

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		algorithm algorithm.Name
		burst     float64
		elapsed   time.Duration
		want      float64
	}{
		{algorithm.TokenBucket, 0, 0, 10},
		{algorithm.TokenBucket, 30, 90 * time.Second, 45},
		{algorithm.LeakyBucket, 0, 2 * time.Minute, 30},
		{algorithm.LeakyBucketQueue, 20, time.Minute, 30},
		{algorithm.GCRA, 0, time.Minute, 20},
		{algorithm.FixedWindow, 0, 59 * time.Second, 10},
		{algorithm.FixedWindow, 0, time.Minute, 20},
		{algorithm.SlidingWindowLog, 0, 59 * time.Second, 10},
		{algorithm.SlidingWindowLog, 0, 2 * time.Minute, 30},
		{algorithm.SlidingWindowCounter, 0, 0, 10},
		{algorithm.SlidingWindowCounter, 0, 30 * time.Second, 15},
		{algorithm.SlidingWindowCounter, 0, 90 * time.Second, 30},
	} {
		p := Plan{Algorithm: c.algorithm, Limit: 10, Period: time.Minute, Burst: c.burst}
		if got := allowed(p, start, start.Add(c.elapsed)); got != c.want {
			t.Errorf("%s, burst %v, after %v: got %v, want %v", c.algorithm, c.burst, c.elapsed, got, c.want)
		}
	}
	if Exceeded(30, 30) || Exceeded(30, 30-1e-9) || !Exceeded(31, 30) {
		t.Error("Exceeded")
	}
}

// TestAllowedPlans: several plans admit what their largest burst, fastest rate and
// shortest period do together.
func TestAllowedPlans(t *testing.T) {
	t.Parallel()
	small := Plan{Algorithm: algorithm.TokenBucket, Limit: 10, Period: time.Minute}
	large, tall, slow := small, small, small
	large.Limit = 30
	tall.Burst = 100
	slow.Limit, slow.Period = 100, time.Hour
	few := Plan{Algorithm: algorithm.FixedWindow, Limit: 10, Period: time.Minute}
	long := few
	long.Limit, long.Period = 50, time.Hour
	for _, c := range []struct {
		plans []Plan
		want  float64
	}{
		{nil, 0},
		{[]Plan{small}, 20},
		{[]Plan{small, large}, 60},
		{[]Plan{large, small}, 60},
		{[]Plan{small, large, tall}, 130},
		{[]Plan{slow, small}, 110},
		{[]Plan{small, slow}, 110},
		{[]Plan{few}, 20},
		{[]Plan{few, long}, 100},
	} {
		if got := Allowed(c.plans, start, start.Add(time.Minute)); got != c.want {
			t.Errorf("%v: got %v, want %v", c.plans, got, c.want)
		}
	}
}

// TestAllowedTicks: only whole ticks leak, from a bucket that was empty at the beginning.
func TestAllowedTicks(t *testing.T) {
	t.Parallel()
	p := Plan{Algorithm: algorithm.LeakyBucket, Limit: 60, Period: time.Minute, Burst: 5, Tick: 20 * time.Second}
	for elapsed, want := range map[time.Duration]float64{0: 5, 19 * time.Second: 5, 20 * time.Second: 25, 59 * time.Second: 45, time.Minute: 65} {
		if got := Allowed([]Plan{p}, start, start.Add(elapsed)); got != want {
			t.Errorf("after %v: got %v, want %v", elapsed, got, want)
		}
	}
}

// TestAllowedWindows: a policy with fixed edges admits its limit in each window that the
// time touches.
func TestAllowedWindows(t *testing.T) {
	t.Parallel()
	aligned := Plan{Algorithm: algorithm.FixedWindow, Limit: 10, Period: time.Minute, Aligned: true}
	calendar := func(c algorithm.Unit, zone string) Plan {
		return Plan{Algorithm: algorithm.FixedWindow, Limit: 10, Calendar: c, TimeZone: zone}
	}
	day := calendar(algorithm.Day, "Europe/Vienna") // there start is 23:58 on a Friday, and two days later clocks are set
	for _, c := range []struct {
		p          Plan
		from, last time.Duration
		want       float64
	}{
		{aligned, 0, 59 * time.Second, 10},
		{aligned, time.Second, time.Minute, 20},
		{aligned, 59 * time.Second, 3 * time.Minute, 40},
		{calendar(algorithm.Hour, ""), 0, 2*time.Minute - 1, 10},
		{calendar(algorithm.Hour, ""), 0, 2 * time.Minute, 20},
		{calendar(algorithm.Hour, "Asia/Kathmandu"), 0, 16 * time.Minute, 10}, // from 4:43
		{calendar(algorithm.Hour, "Asia/Kathmandu"), 0, 77 * time.Minute, 30}, // until 6:00
		{day, 0, time.Minute, 10},
		{day, 0, 2 * time.Minute, 20},
		{day, 2 * time.Minute, 24*time.Hour + 2*time.Minute, 20},
		{day, 24*time.Hour + 2*time.Minute, 47*time.Hour + 2*time.Minute, 20}, // a day of 23 hours
		{calendar(algorithm.Week, "UTC"), 0, 48 * time.Hour, 10},              // until Sunday
		{calendar(algorithm.Week, "UTC"), 0, 50 * time.Hour, 20},
		{calendar(algorithm.Month, "America/New_York"), 0, 101*time.Hour + 2*time.Minute - 1, 10},
		{calendar(algorithm.Month, "America/New_York"), 0, 101*time.Hour + 2*time.Minute, 20}, // 4:00 UTC
	} {
		if got := Allowed([]Plan{c.p}, start.Add(c.from), start.Add(c.last)); got != c.want {
			t.Errorf("%s %s %s, from %v to %v: got %v, want %v", c.p.Period, c.p.Calendar, c.p.TimeZone, c.from, c.last, got, c.want)
		}
	}
}

// TestWindows: where each begin is shown once, the windows are those of the limiter, which
// computes them in another way.
func TestWindows(t *testing.T) {
	t.Parallel()
	for _, anchor := range []string{"", "2024-01-31", "2024-02-29T09:30", "2023-11-30T23:59", "2023-12-15T04:05"} {
		for _, unit := range algorithm.Units {
			a := must.OK(algorithm.AnchorOf(anchor))(t)
			c := must.OK(algorithm.CalendarOf(unit, "Asia/Kathmandu", a))(t)
			p := Plan{Calendar: unit, TimeZone: "Asia/Kathmandu", Anchor: anchor}
			for at := start; at.Before(start.AddDate(3, 0, 0)); at = at.Add(37*time.Hour + 17*time.Minute) {
				from, to := Window(p, at)
				if _, turn, until := c.Near(at.UnixMicro()); from.After(at) || !to.After(at) || to.UnixMicro() != turn && to.UnixMicro() != until {
					t.Fatalf("%s from %q: %v is in a window from %v to %v, of the limiter to %v or %v", unit, anchor, at, from, to, time.UnixMicro(turn).UTC(), time.UnixMicro(until).UTC())
				}
				if _, begin := Window(p, from.Add(-1)); !begin.Equal(from) {
					t.Fatalf("%s from %q: the window before %v ends at %v", unit, anchor, from, begin)
				}
			}
		}
	}
}
