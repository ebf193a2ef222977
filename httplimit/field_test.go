package httplimit

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var at = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func TestSetHeader(t *testing.T) {
	login := limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10}
	day := limiter.Policy{Name: "day", Algorithm: limiter.FixedWindow, Limit: 1000, Calendar: limiter.Day}
	odd := limiter.Policy{Name: "odd", Algorithm: limiter.GCRA, Limit: 2.5, Period: 1500 * time.Millisecond}
	huge := limiter.Policy{Name: "huge", Algorithm: limiter.GCRA, Limit: 1 << 53, Period: time.Second}
	unsafe := limiter.Policy{Name: "a\"b\r\nSet-Cookie: x", Limit: 1, Period: time.Second}
	broken := limiter.Policy{Name: "a\nb", Limit: 1, Period: time.Second}
	yes := func(remaining float64, reset time.Duration) limiter.Result {
		return limiter.Result{Allowed: true, Burst: 10, Remaining: remaining, ResetAfter: reset, At: at}
	}
	no := func(remaining float64, retry, reset time.Duration) limiter.Result {
		return limiter.Result{Burst: 10, Remaining: remaining, RetryAfter: retry, ResetAfter: reset, At: at}
	}
	degraded := limiter.Result{Allowed: true, Burst: 10, Source: limiter.SourceDegraded, At: at}
	ghost := limiter.Policy{Name: "ghost", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second, Shadow: true}
	loginGhost := login
	loginGhost.Shadow = true
	shadowed := limiter.Result{Allowed: true, Shadowed: true, Reason: limiter.ReasonLimit, Burst: 10, RetryAfter: time.Hour, At: at}
	skipped := limiter.Result{Burst: 10, Source: limiter.SourceSkipped, At: at}
	type fields map[string][]string
	for _, c := range []struct {
		name       string
		policies   []limiter.Policy
		perRequest []limiter.Result
		deniedBy   int
		want       fields
	}{
		{"allowed", []limiter.Policy{login}, []limiter.Result{yes(9.9999, 12*time.Second+1)}, -1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=9;t=13`},
			xLimitField: {"10"}, xRemainingField: {"9"}, xResetField: {"1780315213"}}},
		{"denied", []limiter.Policy{login}, []limiter.Result{no(0.5, 6*time.Second+1, time.Minute)}, 0, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=0;t=7`}, retryField: {"7"},
			xLimitField: {"10"}, xRemainingField: {"0"}, xResetField: {"1780315207"}}},
		{"several", []limiter.Policy{login, day, odd}, []limiter.Result{yes(9, time.Hour), no(0, time.Minute, time.Minute), yes(2.5, 0)}, 1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10, "day";q=1000, "odd";q=5;w=3;pglimit-burst=2`},
			limitField:  {`"login";r=9;t=60, "day";r=0;t=60, "odd";r=2;t=0`}, retryField: {"60"},
			xLimitField: {"10"}, xRemainingField: {"0"}, xResetField: {"1780315260"}}},
		{"several allowed", []limiter.Policy{login, day}, []limiter.Result{yes(9, time.Hour), yes(8, time.Minute)}, -1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10, "day";q=1000`}, limitField: {`"login";r=9;t=3600, "day";r=8;t=60`},
			xLimitField: {"10"}, xRemainingField: {"8"}, xResetField: {"1780315260"}}},
		{"never", []limiter.Policy{login, day}, []limiter.Result{no(10, limiter.Never, 0), no(0, time.Second, time.Second)}, 0, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10, "day";q=1000`}, limitField: {`"login";r=10, "day";r=0;t=1`},
			xLimitField: {"10"}, xRemainingField: {"10"}}},
		{"at once", []limiter.Policy{login}, []limiter.Result{no(0, 0, 0)}, 0, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=0;t=0`}, retryField: {"1"},
			xLimitField: {"10"}, xRemainingField: {"0"}, xResetField: {"1780315200"}}},
		{"huge", []limiter.Policy{huge}, []limiter.Result{yes(1<<53, 0)}, -1, fields{
			policyField: {`"huge";q=999999999999999;w=1`}, limitField: {`"huge";r=999999999999999;t=0`},
			xLimitField: {"10"}, xRemainingField: {"999999999999999"}, xResetField: {"1780315200"}}},
		{"one name", []limiter.Policy{login, login, login, login}, []limiter.Result{yes(1, 0), no(3, time.Second, time.Hour), yes(0, 0), no(3, time.Second, time.Hour)}, 1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=3;t=1`}, retryField: {"1"},
			xLimitField: {"10"}, xRemainingField: {"3"}, xResetField: {"1780315201"}}},
		{"equal requests", []limiter.Policy{login, login}, []limiter.Result{no(0, 30*time.Second, time.Minute), no(0, time.Minute, time.Minute)}, 1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=0;t=60`}, retryField: {"60"},
			xLimitField: {"10"}, xRemainingField: {"0"}, xResetField: {"1780315260"}}},
		{"less room", []limiter.Policy{login, login, day}, []limiter.Result{yes(4, 0), yes(3, time.Second), yes(5, 0)}, -1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10, "day";q=1000`}, limitField: {`"login";r=3;t=1, "day";r=5;t=0`},
			xLimitField: {"10"}, xRemainingField: {"3"}, xResetField: {"1780315201"}}},
		{"degraded", []limiter.Policy{login}, []limiter.Result{degraded}, -1, fields{}},
		{"one degraded", []limiter.Policy{day, login}, []limiter.Result{degraded, yes(3, time.Second)}, -1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=3;t=1`},
			xLimitField: {"10"}, xRemainingField: {"3"}, xResetField: {"1780315201"}}},
		{"no valid name", []limiter.Policy{broken, unsafe}, []limiter.Result{yes(3, 0), yes(3, 0)}, -1, fields{
			xLimitField: {"10"}, xRemainingField: {"3"}, xResetField: {"1780315200"}}},
		{"a shadow", []limiter.Policy{ghost}, []limiter.Result{yes(3, time.Second)}, -1, fields{}},
		{"a shadow's denial", []limiter.Policy{login, ghost, login}, []limiter.Result{yes(3, time.Second), shadowed, shadowed}, -1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=3;t=1`},
			xLimitField: {"10"}, xRemainingField: {"3"}, xResetField: {"1780315201"}}},
		{"a shadow of one name", []limiter.Policy{loginGhost, login}, []limiter.Result{yes(1, time.Second), yes(3, time.Second)}, -1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=3;t=1`},
			xLimitField: {"10"}, xRemainingField: {"3"}, xResetField: {"1780315201"}}},
		{"a shadow beside a denial", []limiter.Policy{ghost, login}, []limiter.Result{skipped, no(0, time.Second, time.Minute)}, 1, fields{
			policyField: {`"login";q=5;w=60;pglimit-burst=10`}, limitField: {`"login";r=0;t=1`}, retryField: {"1"},
			xLimitField: {"10"}, xRemainingField: {"0"}, xResetField: {"1780315201"}}},
		{"nothing decided", []limiter.Policy{login}, nil, -1, fields{}},
	} {
		for i := range c.perRequest {
			c.perRequest[i].Policy = c.policies[i]
		}
		h := http.Header{}
		SetHeader(h, c.perRequest...)
		SetHeader(h, c.perRequest...) // again, as when WithOnDeny's function calls Deny
		setXRateLimit(h, limiter.Results{Allowed: c.deniedBy < 0, PerRequest: c.perRequest, DeniedBy: c.deniedBy})
		if !maps.EqualFunc(h, http.Header(c.want), slices.Equal) {
			t.Errorf("%s: got\n%q, want\n%q", c.name, h, c.want)
		}
	}

	// A second layer adds to the first.
	h := http.Header{}
	for _, p := range []limiter.Policy{login, day} {
		r := yes(3, time.Second)
		r.Policy = p
		SetHeader(h, r)
	}
	if want := []string{`"login";r=3;t=1`, `"day";r=3;t=1`}; !slices.Equal(h[limitField], want) || len(h[policyField]) != 2 {
		t.Errorf("two layers: got %q", h)
	}
	third := no(0, time.Millisecond, time.Hour)
	third.Policy = odd
	SetHeader(h, third)
	if want := []string{`"odd";r=0;t=1`}; !slices.Equal(h[limitField], want) || len(h[policyField]) != 1 || h.Get(retryField) != "1" {
		t.Errorf("the third denies: got %q", h)
	}
}

// TestSetHeaderWholeNumbers checks that whole numbers say a bucket's rate.
func TestSetHeaderWholeNumbers(t *testing.T) {
	for _, c := range []struct {
		limit  float64
		period time.Duration
		burst  float64
		want   string
	}{
		{10, time.Minute, 0, `q=10;w=60`},
		{10, 100 * time.Millisecond, 0, `q=100;w=1;pglimit-burst=10`},
		{0.5, time.Second, 3, `q=1;w=2;pglimit-burst=3`},
		{1.0 / 3, time.Second, 1, `q=1;w=3`},
		{0.07, time.Second, 7, `q=7;w=100`},
		{2.5, time.Minute, 5, `q=5;w=120`},
		{2.5, time.Minute, 0, `q=5;w=120;pglimit-burst=2`},
		{0.007, time.Second, 7, `q=7;w=1000`},
		{0.001, time.Second, 1, `q=1;w=1000`},
		{3, time.Millisecond, 0, `q=3000;w=1;pglimit-burst=3`},
		{0.5, 80 * 365 * 24 * time.Hour, 1, `q=1;w=5045760000`},
		{1e-9, time.Second, 1, `q=1;w=1000000000`},
		{1.0 / 7, 1500 * time.Microsecond, 1, `q=2000;w=21;pglimit-burst=1`},
		{math.Pi / 10, time.Second, 1, `q=52103;w=165849;pglimit-burst=1`}, // to a billionth
	} {
		for _, a := range limiter.Algorithms() {
			p := limiter.Policy{Name: "p", Algorithm: a, Limit: c.limit, Period: c.period, Burst: c.burst}
			if p.Validate() != nil { // windows have no burst
				continue
			}
			want := c.want
			if a == limiter.FixedWindow || a == limiter.SlidingWindowCounter || a == limiter.SlidingWindowLog {
				want = "q=" + strconv.Itoa(int(c.limit))
				if c.period%time.Second == 0 {
					want += ";w=" + strconv.Itoa(int(c.period/time.Second))
				}
			}
			if got := rendered(advertise(&p)).policy; got != `"p";`+want {
				t.Errorf("%v per %v by %s: got %s, want %s", c.limit, c.period, a, got, want)
			}
		}
	}
}

// TestSetHeaderParses checks with random results that the fields parse, and that Retry-After
// is neither before any t nor before the limiter's RetryAfter.
func TestSetHeaderParses(t *testing.T) {
	times := rapid.OneOf(rapid.SampledFrom([]time.Duration{0, time.Second, limiter.Never}),
		rapid.Map(rapid.Int64Range(0, math.MaxInt64), func(ns int64) time.Duration { return time.Duration(ns) }))
	amounts := rapid.OneOf(rapid.Float64Range(0, 10), rapid.Float64Range(0, 1<<53))
	rapid.Check(t, func(t *rapid.T) {
		allowed := rapid.Bool().Draw(t, "allowed")
		var results []limiter.Result
		retry := time.Duration(0)
		for i := range rapid.IntRange(1, 4).Draw(t, "requests") {
			p := limiter.Policy{Name: "p" + strconv.Itoa(i), Algorithm: limiter.FixedWindow, Limit: amounts.Draw(t, "limit"), Period: times.Draw(t, "period"), Burst: amounts.Draw(t, "burst")}
			r := limiter.Result{Policy: p, Allowed: allowed || i > 0 && rapid.Bool().Draw(t, "fits"), Burst: max(p.Burst, 1), Remaining: amounts.Draw(t, "remaining"), ResetAfter: times.Draw(t, "reset"), At: at}
			if !r.Allowed {
				r.RetryAfter = 1 + min(limiter.Never-1, times.Draw(t, "retry"))
				retry = max(retry, r.RetryAfter)
			}
			results = append(results, r)
		}
		h := http.Header{}
		SetHeader(h, results...)
		policies, err := httpsfv.UnmarshalList(h[policyField])
		limits, err2 := httpsfv.UnmarshalList(h[limitField])
		if err != nil || err2 != nil || len(policies) != len(results) || len(limits) != len(results) {
			t.Fatalf("got %q, %v, %v", h, err, err2)
		}
		got := h.Get(retryField)
		if allowed || retry == limiter.Never {
			if got != "" {
				t.Fatalf("Retry-After %q, want none", got)
			}
			return
		}
		seconds, err := strconv.ParseInt(got, 10, 64)
		if err != nil || seconds < 1 || float64(seconds) < retry.Seconds() || float64(seconds-1) >= retry.Seconds() {
			t.Fatalf("Retry-After %q for %v: %v", got, retry, err)
		}
		for _, member := range limits {
			if until, ok := member.(httpsfv.Item).Params.Get("t"); ok && until.(int64) > seconds {
				t.Fatalf("Retry-After %d is before %q", seconds, h[limitField])
			}
		}
	})
}

// TestSetHeaderRemainingIsGranted checks that r is exactly the number of units that would
// be granted, even after many rounded levels.
func TestSetHeaderRemainingIsGranted(t *testing.T) {
	for _, algorithm := range limiter.Algorithms() {
		now := at
		l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
		p := limiter.Policy{Name: "p", Algorithm: algorithm, Limit: 10, Period: 7 * time.Hour}
		for range 100 {
			now = now.Add(p.Period / 13)
			r := must.OK(l.Allow(t.Context(), p, "k"))(t)
			h := http.Header{}
			SetHeader(h, r)
			list := must.OK(httpsfv.UnmarshalList(h[limitField]))(t)
			reported, _ := list[0].(httpsfv.Item).Params.Get("r")
			n := float64(reported.(int64))
			fits, err := l.Check(t.Context(), p, "k", n)
			more, err2 := l.Check(t.Context(), p, "k", n+1)
			if err != nil || err2 != nil || !fits.Allowed || more.Allowed {
				t.Fatalf("%s: reported %v of %v remaining; %v fit: %v, %v; one more fits: %v, %v", algorithm, n, r.Remaining, n, fits.Allowed, err, more.Allowed, err2)
			}
		}
	}
}

// TestSetHeaderRenderedOnce checks that a policy's text allocates nothing after its first
// request, and that the cache is bounded.
func TestSetHeaderRenderedOnce(t *testing.T) {
	a, b := advertised{name: "a", quota: 1}, advertised{name: "b", quota: 1}
	if n := testing.AllocsPerRun(10, func() { rendered(a); rendered(b) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	for i := range 5000 {
		rendered(advertised{name: "plan", quota: int64(i)})
	}
	if n := texts.Len(); n > 1024 {
		t.Errorf("the cache has %d texts, want at most 1024", n)
	}
}
