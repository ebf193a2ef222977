package playground

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/playground/event"
	"github.com/pglimit/pglimit/internal/playground/sitetest"
	"github.com/pglimit/pglimit/limiter"
)

// TestLimited: the route answers like httplimit, and the streams show what the client
// received.
func TestLimited(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.Watch(t, "k")
	for _, a := range limiter.Algorithms() {
		at := fmt.Sprintf("/limited/%s?limit=2&period=1000h&key=k", a)
		for i := range 3 {
			if a == limiter.LeakyBucketQueue && i == 1 { // it would wait
				s.Post(t, "/api/send", `{"key":"k","times":1,"requests":[{"policy":{"algorithm":"leaky_bucket_queue","limit":2,"period":"1000h"}}]}`, &sitetest.Counts{})
				w.Until(t, "decision", &event.Decision{})
				continue
			}
			answer, body := s.Call(t, http.MethodGet, at, "")
			var d event.Decision
			w.Until(t, "decision", &d)
			seen := answer.Header.Clone()
			for _, added := range []string{"Date", "Content-Length"} { // by net/http
				seen.Del(added)
			}
			if got, want := fmt.Sprint(d.Headers), fmt.Sprint(event.Lines(seen)); got != want || d.Status != answer.StatusCode || d.Algorithm != a {
				t.Errorf("%s: the stream has %d %s\nthe client received %d %s", at, d.Status, got, answer.StatusCode, want)
			}
			switch {
			case i < 2 && (answer.StatusCode != 200 || body != "allowed\n" || d.Body != "" || answer.Header.Get("RateLimit") == ""):
				t.Errorf("%s: %s %q %+v", at, answer.Status, body, d)
			case i == 2 && (answer.StatusCode != 429 || body != d.Body || answer.Header.Get("Retry-After") == ""):
				t.Errorf("%s: %s %q %+v", at, answer.Status, body, d)
			}
		}
	}
}

// TestLimitedQuery: the URL has the policy, the key and the cost.
func TestLimitedQuery(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.Watch(t, "k")
	for at, want := range map[string]event.Decision{
		"leaky_bucket?limit=2&period=1h&burst=3&tick=1m&block_for=5s&cost=0.5": {Algorithm: limiter.LeakyBucket, Limit: 2, Burst: 3, Cost: 0.5},
		"fixed_window?limit=1e3&period=1h&aligned=true":                        {Algorithm: limiter.FixedWindow, Limit: 1000, Burst: 1000, Cost: 1},
		"fixed_window?limit=1&calendar=month&time_zone=Europe%2FVienna":        {Algorithm: limiter.FixedWindow, Limit: 1, Burst: 1, Cost: 1},
	} {
		s.Post(t, "/api/reset", `{"key":"k"}`, &struct{}{})
		if answer, text := s.Call(t, http.MethodGet, "/limited/"+at+"&key=k", ""); answer.StatusCode != 200 {
			t.Errorf("%s: %s %s", at, answer.Status, text)
		}
		var d event.Decision
		w.Until(t, "decision", &d)
		if d.Algorithm != want.Algorithm || d.Limit != want.Limit || d.Burst != want.Burst || d.Cost != want.Cost {
			t.Errorf("%s: %+v, want %+v", at, d, want)
		}
	}
	for at, c := range map[string]struct{ field, algorithm, want string }{
		"gcra":                                     {"key", "", "key is empty"},
		"gcra?key=k":                               {"limit", "gcra", "Limit 0: must be"},
		"gcra?key=k&limit=1":                       {"period", "gcra", "Period 0s: must be positive"},
		"bucket?key=k&limit=1&period=1s":           {"algorithm", "bucket", `Algorithm "bucket": must be one of`},
		"gcra?key=k&limit=one&period=1s":           {"limit", "", `limit is "one": must be a number`},
		"gcra?key=k&limit=NaN&period=1s":           {"", "", "limit and burst must be finite numbers"},
		"gcra?key=k&limit=1&period=1s&cost=x":      {"cost", "", `cost is "x": must be a number`},
		"gcra?key=k&limit=1&period=1s&cost=0":      {"cost", "gcra", "cost 0: must be positive"},
		"gcra?key=k&limit=1&period=1s&cost=NaN":    {"cost", "gcra", "cost NaN: must be positive"},
		"gcra?key=k&limit=1&period=1s&aligned=x":   {"aligned", "", `aligned is "x": must be true or false`},
		"gcra?key=k&limit=1&period=1s&limit=2":     {"limit", "", "limit is given 2 times"},
		"gcra?key=k&limit=1&period=1s&colour=red":  {"", "", `there is no parameter "colour": use limit, period`},
		"gcra?key=k&limit=1&period=1s&name=login":  {"", "", `there is no parameter "name"`},
		"gcra?key=k&limit=1&period=1s&%zz":         {"", "", "the query cannot be read"},
		"gcra?limit=1&period=1s&key=%00":           {"key", "", "NUL"},
		"gcra?key=k&limit=1&period=soon":           {"period", "gcra", `Period "soon": must be a duration`},
		"gcra?key=k&limit=1&period=1s&tick=1s":     {"tick", "gcra", "is for leaky_bucket only"},
		"fixed_window?key=k&limit=1&calendar=year": {"calendar", "fixed_window", `Calendar "year": must be`},
	} {
		s.ExpectProblem(t, http.MethodGet, "/limited/"+at, "", 400, c.field, c.algorithm, c.want)
	}
}

// TestLimitedWaits: /limited/ waits for a queue's delay; /api/send only shows it.
func TestLimitedWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		start := time.Now()
		for i := range 3 {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/limited/leaky_bucket_queue?limit=3&period=30s&key=k", nil))
			if w.Code != 200 || time.Since(start) != time.Duration(i)*10*time.Second {
				t.Errorf("the %dth answer came after %v: %d", i, time.Since(start), w.Code)
			}
		}
		start = time.Now()
		for _, want := range []int{200, 429} {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/limited/leaky_bucket_queue?limit=2&period=121s&key=later", nil))
			if w.Code != want || time.Since(start) != 0 {
				t.Errorf("a turn after 60.5 s: %d after %v, want %d", w.Code, time.Since(start), want)
			}
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/send",
			strings.NewReader(`{"key":"k","times":4,"requests":[{"policy":{"algorithm":"leaky_bucket_queue","limit":3,"period":"30s"}}]}`))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if got := w.Body.String(); got != `{"allowed":0,"delayed":2,"denied":2}`+"\n" || time.Since(start) != 0 {
			t.Errorf("after %v: %s", time.Since(start), got)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
