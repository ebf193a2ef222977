package playground

import (
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

// TestQuery: the URL can set all fields of a policy.
func TestQuery(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]limiter.Policy{
		"leaky_bucket?limit=2&period=1h&burst=3&tick=1m&block_for=5s&cost=0.5":                    {Algorithm: limiter.LeakyBucket, Limit: 2, Period: time.Hour, Burst: 3, Tick: time.Minute, BlockFor: 5 * time.Second},
		"fixed_window?limit=1e3&period=1h&aligned=true":                                           {Algorithm: limiter.FixedWindow, Limit: 1000, Period: time.Hour, Aligned: true},
		"fixed_window?limit=1&calendar=month&time_zone=Europe%2FVienna&anchor=2024-01-31T09%3A30": {Algorithm: limiter.FixedWindow, Limit: 1, Calendar: limiter.Month, TimeZone: "Europe/Vienna", Anchor: "2024-01-31T09:30"},
	} {
		algorithm, query, _ := strings.Cut(at, "?")
		got, err := parseQuery(limiter.Algorithm(algorithm), query+"&key=k")
		if want.Name = PolicyName; err != nil || got.Policy != want || got.Key != "k" {
			t.Errorf("%s: %+v, %v; want %+v", at, got, err, want)
		}
		if wantCost := map[bool]float64{true: 0.5, false: 1}[strings.Contains(at, "cost")]; got.Cost != wantCost {
			t.Errorf("%s: cost %v", at, got.Cost)
		}
	}
}

// FuzzQuery: a query is parsed to the request that the same policy in JSON is parsed to. A
// query that is refused gets a problem of the client's.
func FuzzQuery(f *testing.F) {
	f.Add("limit=2&period=1m&key=alice", "alice", 2.0, "1m", 0.0, "", 1.0)
	f.Add("limit=1&limit=2&key=k", "k\x00", 0.5, "1s", 3.0, "1m", 0.25)
	f.Add("%zz", "&=;#%", 1e300, "-1s", -1.0, "d", 0.0)
	f.Add("aligned=maybe&key=k;x", "", 5.0, "30d", 5.0, "1d12h", 9007199254740993.0)
	for _, raw := range []string{
		"limit=2&period=1m&key=k&cost=0", "limit=2&period=1m&key=k&cost=-1", "limit=2&period=1m&key=" + strings.Repeat("k", 256), "limit=2&period=1m&key=" + strings.Repeat("k", 257),
		"limit=2&period=1m&key=%00", "limit=2&period=1m&key=%ff", "limit=2&period=1m&key=k&key=l", "limit=2&period=1m&key=k&more=1", "limit=2&period=1m&key=", "limit=Inf&period=1m&key=k",
	} {
		f.Add(raw, "k", 2.0, "1m", 0.0, "", 0.0)
	}
	f.Fuzz(func(t *testing.T, raw, key string, limit float64, period string, burst float64, blockFor string, cost float64) {
		if request, err := parseQuery(limiter.TokenBucket, raw); err != nil {
			blamesClient(t, raw, err)
		} else if err := request.Policy.Validate(); err != nil || request.Cost <= 0 || request.Key == "" || len(request.Key) > 256 || !utf8.ValidString(request.Key) || strings.Contains(request.Key, "\x00") {
			t.Errorf("%q is accepted as %+v: %v", raw, request, err)
		} else if given, err := url.ParseQuery(raw); err != nil || slices.ContainsFunc(slices.Collect(maps.Values(given)), func(values []string) bool { return len(values) > 1 }) {
			t.Errorf("%q is accepted: %v", raw, err)
		}

		number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
		query := url.Values{"key": {key}, "cost": {number(cost)}, "limit": {number(limit)}, "period": {period}, "burst": {number(burst)}, "block_for": {blockFor}}
		got, err := parseQuery(limiter.TokenBucket, query.Encode())
		if err != nil {
			blamesClient(t, query.Encode(), err)
		}
		text, wrong := json.Marshal(map[string]any{"algorithm": limiter.TokenBucket, "limit": limit, "period": period, "burst": burst, "block_for": blockFor})
		if wrong != nil {
			if err == nil {
				t.Errorf("%v is accepted as %+v", query, got)
			}
			return
		}
		want, wrong := parseRequest(text, key, cost)
		if wrong == nil {
			wrong = parseKey(key) // Request leaves the page's bound to its caller
		}
		if (err == nil) != (wrong == nil) || err == nil && got != want {
			t.Errorf("%v is %+v, %v; in JSON %+v, %v", query, got, err, want, wrong)
		}
		if err == nil && got.Policy.Period%time.Microsecond != 0 {
			t.Errorf("%v is accepted with %v", query, got.Policy.Period)
		}
	})
}

// blamesClient checks that an error is a problem with a client's status, of bounded length.
func blamesClient(t *testing.T, input string, err error) {
	t.Helper()
	var p *api.Problem
	if !errors.As(err, &p) || p.Status >= 500 || p.Message == "" || len(p.Message) > 1000+4*len(input) {
		t.Errorf("%q: %v", input, err)
	}
}
