package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/limiter"
)

func TestSuggest(t *testing.T) {
	t.Parallel()
	bucket := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute}
	with := func(p limiter.Policy, change func(*limiter.Policy)) limiter.Policy {
		change(&p)
		return p
	}
	for _, c := range []struct {
		name                  string
		p                     limiter.Policy
		denied                float64
		window                string
		granted, even, atOnce float64
		limit, burst          float64
		command               string
	}{
		{"ten minutes hold ten periods", bucket, 90, "10m0s", 100, 19, 100, 25, 0, "--limit 25"},
		{"a bucket's burst stays", with(bucket, func(p *limiter.Policy) { p.Burst = 40 }), 90, "10m0s", 100, 19, 130, 25, 0, "--limit 25"},
		{"a period of ten minutes", with(bucket, func(p *limiter.Policy) { p.Period = 10 * time.Minute }), 90, "10m0s", 10, 100, 100, 150, 0, "--limit 150"},
		{"a longer period", with(bucket, func(p *limiter.Policy) { p.Period = time.Hour }), 6, "1h0m0s", 10, 16, 16, 20, 0, "--limit 20"},
		{"a calendar", limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 1000, Calendar: limiter.Day}, 600, "calendar day", 1000, 1600, 1600, 2000, 0, "--limit 2000"},
		{"a window's burst", limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 10, Burst: 10, Period: time.Hour}, 6, "1h0m0s", 10, 16, 16, 20, 20, "--limit 20 --burst 20"},
		{"no whole limit", with(bucket, func(p *limiter.Policy) { p.Limit, p.Period = 0.005, time.Second }), 3, "10m0s", 3, 0.01, 3.005, 0.015, 0, "--limit 0.015"},
		{"a large limit", with(bucket, func(p *limiter.Policy) { p.Limit = 1 << 53 }), 1e15, "10m0s", 10 << 53, 1<<53 + 1e14, 1<<53 + 1e15, 1 << 53, 0, "--limit 9007199254740990"},
		{"few more", with(bucket, func(p *limiter.Policy) { p.Limit = 1 }), 1, "10m0s", 10, 1.1, 2, 2, 0, "--limit 2"},
	} {
		got := suggest(c.p, inspect.Peaks{Keys: 1, P999: c.denied})
		if got.Window != c.window || got.Granted != c.granted || got.Demand != c.granted+c.denied || got.Even != c.even || got.AtOnce != c.atOnce || got.Limit != c.limit || got.Burst != c.burst || got.Command != "pglimit policy set p "+c.command {
			t.Errorf("%s: got %+v", c.name, got)
		}
	}
}

func TestSuggestText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	p := &limiter.StoredPolicy{Policy: limiter.Policy{Name: "login", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute, Shadow: true}, ChangedAt: at.Add(time.Minute)}
	peaks := inspect.Peaks{
		Keys: 2, KeysWithRow: 812, KeysOverridden: 1, Denials: 120, WithoutKey: 7, First: at, Last: at.Add(time.Hour), P50: 12, P999: 90, Max: 90,
	}
	want := `policy login: limit 10 per 1m0s, a shadow
on record: 120 shadowed denials from 2026-06-01T12:00:00Z to 2026-06-01T13:00:00Z
keys: 2 denied; 812 have a row in pglimit_keys
left out: 1 key with an override of the limit
left out: 7 shadowed denials of keys for which a denial log had no room
note: the policy was changed at 2026-06-01T12:01:00Z; denials from before count too
denied to a key in its busiest 10m0s: p50 12, p99.9 90, largest 90 units
granted in 10m0s: 100
demand in 10m0s: 100 + 90 = 190
demand per 1m0s: 19 if it comes evenly, up to 100 at once
suggested limit: 19 × 1.25, rounded up: 25

pglimit policy set login --limit 25
`
	if got := answerOf(p, peaks).text(p); got != want {
		t.Errorf("got\n%s", got)
	}
	p.Shadow = false
	a := answerOf(p, inspect.Peaks{KeysWithRow: 3})
	if got := a.text(p); a.Suggestion != nil || !strings.HasPrefix(got, "no denials of policy login are on record\nTo keep them,") || !strings.Contains(got, "policy set login --shadow") {
		t.Errorf("got %s", got)
	}
}
