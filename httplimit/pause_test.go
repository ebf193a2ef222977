package httplimit

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

// TestPause: a response's pause is what its fields say; a field that is not valid is none.
func TestPause(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		header http.Header
		want   time.Duration
	}{
		{"no fields", 200, nil, 0},
		{"seconds", 429, http.Header{"Retry-After": {" 12 "}}, 12 * time.Second},
		{"seconds of 503", 503, http.Header{"Retry-After": {"12"}}, 12 * time.Second},
		{"of a redirect", 301, http.Header{"Retry-After": {"12"}}, 0},
		{"a date, by the server's clock", 429, http.Header{"Retry-After": {"Mon, 01 Jun 2026 12:01:00 GMT"}, "Date": {"Mon, 01 Jun 2026 12:00:00 GMT"}}, time.Minute},
		{"a past date", 503, http.Header{"Retry-After": {"Mon, 01 Jun 2026 12:01:00 GMT"}}, 0},
		{"a very long time", 429, http.Header{"Retry-After": {"18446744073709551615"}}, valid.MaxDuration.Truncate(time.Second)},
		{"not a number", 429, http.Header{"Retry-After": {"-1"}}, time.Second},
		{"429 alone", 429, nil, time.Second},
		{"503 alone", 503, nil, 0},
		{"nothing left", 200, http.Header{"Ratelimit": {`"day";r=7;t=90, "minute";r=0;t=30`}}, 30 * time.Second},
		{"something left", 200, http.Header{"Ratelimit": {`"day";r=7;t=90`}}, 0},
		{"the longest, of several lines", 429, http.Header{"Retry-After": {"5"}, "Ratelimit": {`"a";r=0;t=30`, `"b";r=0;t=40`}}, 40 * time.Second},
		{"a shorter limit", 429, http.Header{"Retry-After": {"50"}, "Ratelimit": {`"a";r=0;t=30`}}, 50 * time.Second},
		{"not a list", 200, http.Header{"Ratelimit": {`limit=1, remaining=0, reset=4;;`}}, 0},
		{"other items", 200, http.Header{"Ratelimit": {`("a" "b");r=0;t=4, "c";r=0, "d";r=0;t=-1, "e";r="0";t=9`}}, 0},
	} {
		if got := Pause(&http.Response{StatusCode: c.status, Header: c.header}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// full answers as a server that has had enough.
type full struct {
	base
	header http.Header
}

func (f *full) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := f.base.RoundTrip(r)
	res.StatusCode, res.Header, res.Request = 429, f.header, nil // which a RoundTripper need not set
	return res, err
}

// TestWithPause: a refused request blocks the key of its first request, for the longest pause that
// a field asks for and within the bound; nothing else, and not without the option.
func TestWithPause(t *testing.T) {
	api := limiter.Policy{Name: "api", Algorithm: limiter.TokenBucket, Limit: 100, Period: time.Second}
	other := limiter.Policy{Name: "other", Algorithm: limiter.FixedWindow, Limit: 100, Period: time.Hour}
	own := func(res *http.Response) time.Duration {
		d, _ := time.ParseDuration(res.Header.Get("Own-Reset"))
		return d
	}
	for _, c := range []struct {
		name   string
		opts   []TransportOption
		header http.Header
		want   time.Duration // until the next request is sent; 0: at once
	}{
		{"without the option", nil, http.Header{"Retry-After": {"60"}}, 0},
		{"Retry-After", []TransportOption{WithPause(time.Hour)}, http.Header{"Retry-After": {"60"}}, time.Minute},
		{"longer than the bound", []TransportOption{WithPause(time.Hour)}, http.Header{"Retry-After": {"86400"}}, time.Hour},
		{"an own field", []TransportOption{WithPause(time.Hour, own)}, http.Header{"Retry-After": {"60"}, "Own-Reset": {"6m0s"}}, 6 * time.Minute},
		{"an own field that is shorter", []TransportOption{WithPause(time.Hour, own)}, http.Header{"Retry-After": {"60"}, "Own-Reset": {"1s"}}, time.Minute},
	} {
		l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return at }})
		server := &full{header: c.header}
		client := &http.Client{Transport: Transport(l, fixed(api.Request("k", 1), other.Request("k", 1)), server, c.opts...)}
		if res, err := client.Get("http://example.com"); err != nil || res.StatusCode != 429 {
			t.Fatalf("%s: %v, %v", c.name, res, err)
		}
		_, err := client.Get("http://example.com")
		var denied *limiter.DeniedError
		errors.As(err, &denied)
		switch {
		case c.want == 0:
			if err != nil || server.sent != 2 {
				t.Errorf("%s: %v, %d sent", c.name, err, server.sent)
			}
		case denied == nil || denied.Result.RetryAfter != c.want || denied.Result.Reason != limiter.ReasonBlocked || server.sent != 1:
			t.Errorf("%s: %v, %d sent; want to wait for %v", c.name, err, server.sent, c.want)
		}
		for _, free := range []limiter.Request{api.Request("another", 1), other.Request("k", 1)} {
			if r, err := l.Do(t.Context(), free); err != nil || !r.Allowed {
				t.Errorf("%s: %s %s: %+v, %v", c.name, free.Policy.Name, free.Key, r, err)
			}
		}
	}
}

// TestWithPauseLonger: a pause does not shorten an earlier one.
func TestWithPauseLonger(t *testing.T) {
	api := limiter.Policy{Name: "api", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 100}
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return at }})
	for _, seconds := range []string{"60", "5"} {
		rt := Transport(l, fixed(), &full{header: http.Header{"Retry-After": {seconds}}}, WithPause(time.Hour)).(*transport)
		r := must.OK(http.NewRequest("GET", "http://example.com", nil))(t)
		res, _ := rt.base.RoundTrip(r)
		rt.pause(t.Context(), res, api.Request("k", 1))
	}
	if r, err := l.DoWait(t.Context(), api.Request("k", 1)); err != nil || r.RetryAfter != time.Minute {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestWithPauseBounds: a bound that no block can have is refused at the start.
func TestWithPauseBounds(t *testing.T) {
	for _, f := range []func(){
		func() { WithPause(0) }, func() { WithPause(-1) }, func() { WithPause(time.Nanosecond) }, func() { WithPause(time.Hour, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}
