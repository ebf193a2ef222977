package replay

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestWords(t *testing.T) {
	for want, c := range map[string]CandidateReport{
		"60 per 1m": {Policy: policy(limiter.TokenBucket, 60, time.Minute), Cost: 1},
		"1,000,000 per 36h, burst 0.25, tick 500ms, block for 1m30s, cost 0.000000001": {Policy: limiter.Policy{
			Limit: 1e6, Period: 36 * time.Hour, Burst: 0.25, Tick: 500 * time.Millisecond, BlockFor: 90 * time.Second,
		}, Cost: 1e-9},
		"5 per 24h, aligned":          {Policy: limiter.Policy{Limit: 5, Period: 24 * time.Hour, Aligned: true}, Cost: 1},
		"5 per month (Europe/Vienna)": {Policy: limiter.Policy{Limit: 5, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}, Cost: 1},
		"5 per week (UTC)":            {Policy: limiter.Policy{Limit: 5, Calendar: limiter.Week}, Cost: 1},
	} {
		if got := c.Words(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, a := range limiter.Algorithms() {
		if titles[a] == "" {
			t.Errorf("%s has no title", a)
		}
	}
}

func TestLong(t *testing.T) {
	for us, want := range map[int64]string{0: "0s", 1500: "1.5ms", second: "1 second", 90 * second: "1 minute 30 seconds", 36*hour + second/2: "1 day 12 hours 0.5 seconds", 8035 * day: "8,035 days"} {
		if got := long(us); got != want {
			t.Errorf("%d µs: %q, want %q", us, got, want)
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
