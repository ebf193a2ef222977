package replay

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func policyOf(a limiter.Algorithm, limit float64, period time.Duration) limiter.Policy {
	return limiter.Policy{Name: "p", Algorithm: a, Limit: limit, Period: period}
}

func TestPolicy(t *testing.T) {
	with := func(p limiter.Policy, change func(p *limiter.Policy)) limiter.Policy { change(&p); return p }
	for _, c := range []struct {
		policy limiter.Policy
		cost   float64
		want   string
	}{
		{policyOf(limiter.TokenBucket, 60, time.Minute), 1, "60 per minute in the long run, up to 60 at once."},
		{with(policyOf(limiter.LeakyBucket, 1e6, 36*time.Hour), func(p *limiter.Policy) { p.Burst, p.Tick = 0.25, 500*time.Millisecond }), 1e-9,
			"1,000,000 per 1 day 12 hours in the long run, up to 0.25 at once, freed in steps of 500ms. Each request costs 0.000000001."},
		{policyOf(limiter.LeakyBucketQueue, 1, time.Second), 1, "Allows 1 per second, evenly spaced; up to 1 wait for their turn."},
		{with(policyOf(limiter.FixedWindow, 5, time.Hour), func(p *limiter.Policy) { p.BlockFor = 90 * time.Second }), 1,
			"Up to 5 in each hour, counted from a client's first request. A denied client is blocked for 1 minute 30 seconds."},
		{with(policyOf(limiter.FixedWindow, 5, 24*time.Hour), func(p *limiter.Policy) { p.Aligned = true }), 1, "Up to 5 in each day on the clock."},
		{limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}, 1, "Up to 5 in each month of the calendar in Europe/Vienna."},
		{limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Calendar: limiter.Week}, 1, "Up to 5 in each week of the calendar in UTC."},
		{policyOf(limiter.SlidingWindowCounter, 5, 2500*time.Millisecond), 1, "Up to 5 in any 2.5 seconds, by an estimate from windows on the clock."},
		{policyOf(limiter.SlidingWindowLog, 5, 2*time.Hour), 1, "Never more than 5 in any 2 hours."},
	} {
		if err := c.policy.Validate(); err != nil {
			t.Error(err)
		}
		if got := policyText(c.policy, c.cost); got != c.want {
			t.Errorf("%s: got %q, want %q", c.policy.Algorithm, got, c.want)
		}
	}
	for _, a := range limiter.Algorithms() {
		if titles[a] == "" {
			t.Errorf("%s has no title", a)
		}
	}
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		n, of int
		want  string
	}{{0, 5, "0.0 %"}, {5, 5, "100.0 %"}, {1, 3, "33.3 %"}, {1, 100_000, "< 0.1 %"}, {99_999, 100_000, "> 99.9 %"}} {
		if got := percent(c.n, c.of); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.n, c.of, got, c.want)
		}
	}
}
