package parse

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestQuery: the URL can set all fields of a policy.
func TestQuery(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]limiter.Policy{
		"leaky_bucket?limit=2&period=1h&burst=3&tick=1m&block_for=5s&cost=0.5": {Algorithm: limiter.LeakyBucket, Limit: 2, Period: time.Hour, Burst: 3, Tick: time.Minute, BlockFor: 5 * time.Second},
		"fixed_window?limit=1e3&period=1h&aligned=true":                        {Algorithm: limiter.FixedWindow, Limit: 1000, Period: time.Hour, Aligned: true},
		"fixed_window?limit=1&calendar=month&time_zone=Europe%2FVienna":        {Algorithm: limiter.FixedWindow, Limit: 1, Calendar: limiter.Month, TimeZone: "Europe/Vienna"},
	} {
		algorithm, query, _ := strings.Cut(at, "?")
		got, err := Query(limiter.Algorithm(algorithm), query+"&key=k")
		if want.Name = PolicyName; err != nil || got.Policy != want || got.Key != "k" {
			t.Errorf("%s: %+v, %v; want %+v", at, got, err, want)
		}
		if wantCost := map[bool]float64{true: 0.5, false: 1}[strings.Contains(at, "cost")]; got.Cost != wantCost {
			t.Errorf("%s: cost %v", at, got.Cost)
		}
	}
}
