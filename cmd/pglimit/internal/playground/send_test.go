package playground

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
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
				s.Post(t, "/api/send", `{"key":"k","times":1,"requests":[{"policy":{"algorithm":"leaky_bucket_queue","limit":2,"period":"1000h"}}]}`, &counts{})
				w.Until(t, "decision", &decisionEvent{})
				continue
			}
			answer, body := s.Call(t, http.MethodGet, at, "")
			var d decisionEvent
			w.Until(t, "decision", &d)
			seen := answer.Header.Clone()
			for _, added := range []string{"Date", "Content-Length"} { // by net/http
				seen.Del(added)
			}
			if got, want := fmt.Sprint(d.Headers), fmt.Sprint(headerLines(seen)); got != want || d.Status != answer.StatusCode || d.Algorithm != a {
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

// TestLimitedErrors: the answer names the parameter that is wrong.
func TestLimitedErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
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
		"fixed_window?key=k&limit=1&calendar=term": {"calendar", "fixed_window", `Calendar "term": must be`},
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

// three returns a policy that allows three requests and recovers too slowly to matter.
func three(a limiter.Algorithm) string {
	return fmt.Sprintf(`{"algorithm":%q,"limit":3,"period":"1000h"}`, a)
}

// TestSend: requests are sent concurrently, and not more than the limit are allowed.
// All streams of the key, and no others, receive each decision.
func TestSend(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	one, two, other := s.Watch(t, "alice"), s.Watch(t, "alice"), s.Watch(t, "bob")
	var requests []string
	for _, a := range limiter.Algorithms() {
		requests = append(requests, fmt.Sprintf(`{"policy":%s,"cost":1}`, three(a)))
	}
	var sum counts
	var senders sync.WaitGroup
	var mu sync.Mutex
	for range 4 {
		senders.Go(func() {
			var got counts
			s.Post(t, "/api/send", `{"key":"alice","times":5,"requests":[`+strings.Join(requests, ",")+`]}`, &got)
			mu.Lock()
			defer mu.Unlock()
			sum.Allowed, sum.Delayed, sum.Denied = sum.Allowed+got.Allowed, sum.Delayed+got.Delayed, sum.Denied+got.Denied
		})
	}
	senders.Wait()
	// The queue allows one at once and delays two.
	if want := (counts{Allowed: 3*6 + 1, Delayed: 2, Denied: 17 * 7}); sum != want {
		t.Errorf("sent %+v, want %+v", sum, want)
	}
	for _, w := range []*webpagetest.Watcher{one, two} {
		outcomes, allowed := map[string]int{}, map[limiter.Algorithm]int{}
		for range 4 * 5 * 7 {
			var d decisionEvent
			w.Until(t, "decision", &d)
			outcomes[d.Outcome]++
			if d.Status == http.StatusOK {
				allowed[d.Algorithm]++
			}
		}
		if outcomes["allowed"] != sum.Allowed || outcomes["delayed"] != sum.Delayed || outcomes["denied"] != sum.Denied {
			t.Errorf("the stream has %v, want %+v", outcomes, sum)
		}
		for _, a := range limiter.Algorithms() {
			if allowed[a] != 3 {
				t.Errorf("%s: %d allowed, want 3", a, allowed[a])
			}
		}
	}
	var got counts
	s.Post(t, "/api/send", `{"key":"bob","times":1,"requests":[`+requests[2]+`]}`, &got)
	s.Post(t, "/api/reset", `{"key":"bob"}`, &struct{}{})
	// Levels may come before the decision that they include.
	decisions := 0
	for name, _ := other.Next(t); name != "reset"; name, _ = other.Next(t) {
		if name == "decision" {
			decisions++
		}
	}
	if decisions != 1 || got != (counts{Allowed: 1}) {
		t.Errorf("%d decisions of bob's, %+v", decisions, got)
	}
}

func TestSendErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	request := func(policy string) string { return `{"key":"k","times":1,"requests":[{"policy":` + policy + `}]}` }
	const good = `{"algorithm":"gcra","limit":1,"period":"1s"}`
	for _, c := range []struct {
		body             string
		status           int
		field, algorithm string
		want             string
	}{
		{``, 400, "", "", "the body is empty"},
		{`[]`, 400, "body", "", "body is a JSON array: must be an object"},
		{`{"key":`, 400, "", "", "the body cannot be read: unexpected EOF"},
		{`{"key":"k","times":1,"requests":[{"policy":` + good + `}]} {}`, 400, "", "", "more than one JSON value"},
		{`{"keys":"k"}`, 400, "", "", `unknown field "keys"`},
		{`{"key":7}`, 400, "key", "", "key is a JSON number: must be a string"},
		{`{"times":1}`, 400, "key", "", "key is empty: use a name"},
		{`{"key":"` + strings.Repeat("k", 257) + `"}`, 400, "key", "", "key is 257 bytes long: 256 at most"},
		{`{"key":"k\u0000"}`, 400, "key", "", "key \"k\\x00\": holds a NUL byte"},
		{`{"key":"k","times":0}`, 400, "times", "", "times is 0: must be from 1 to 100"},
		{`{"key":"k","times":101}`, 400, "times", "", "times is 101: must be from 1 to 100"},
		{`{"key":"k","times":1.5}`, 400, "times", "", "times is a JSON number 1.5: must be a whole number"},
		{`{"key":"k","times":1}`, 400, "requests", "", "requests are 0: must be from 1 to 7"},
		{`{"key":"k","times":1,"requests":[` + strings.Repeat(`{"policy":`+good+`},`, 7) + `{"policy":` + good + `}]}`, 400, "requests", "", "requests are 8"},
		{`{"key":"k","times":1,"requests":[{"polciy":1}]}`, 400, "", "", `unknown field "polciy"`},
		{`{"key":"k","times":1,"requests":[{"policy":` + good + `,"cost":0}]}`, 400, "cost", "gcra", "cost 0: must be positive"},
		{`{"key":"k","times":1,"requests":[{"policy":` + good + `,"cost":-1}]}`, 400, "cost", "gcra", "cost -1: must be positive"},
		{`{"key":"k","times":1,"requests":[{"cost":1}]}`, 400, "policy", "", "policy is missing"},
		{request(`7`), 400, "policy", "", "policy is a JSON number: must be an object"},
		{request(`{}`), 400, "algorithm", "", `Algorithm "": must be one of`},
		{request(`{"algorithm":"bucket","limit":1,"period":"1s"}`), 400, "algorithm", "bucket", `Algorithm "bucket": must be one of`},
		{request(`{"algorithm":"gcra","limit":0,"period":"1s"}`), 400, "limit", "gcra", "Limit 0: must be from 1e-9"},
		{request(`{"algorithm":"gcra","limit":"1","period":"1s"}`), 400, "limit", "gcra", "limit is a JSON string: must be a number"},
		{request(`{"algorithm":"gcra","limit":1,"period":1}`), 400, "period", "gcra", "period is a JSON number: must be a string"},
		{request(`{"algorithm":"gcra","limit":1,"period":"soon"}`), 400, "period", "gcra", `Period "soon": must be a duration such as "1m30s"`},
		{request(`{"algorithm":"gcra","limit":1}`), 400, "period", "gcra", "Period 0s: must be positive"},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","tick":"1ms"}`), 400, "tick", "gcra", "Tick 1ms: is for leaky_bucket only"},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","aligned":"yes"}`), 400, "aligned", "gcra", "aligned is a JSON string: must be true or false"},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","block_for":"1ns"}`), 400, "block_for", "gcra", "BlockFor 1ns: must be whole microseconds"},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","colour":"red"}`), 400, "", "gcra", `unknown field "colour"`},
		{request(`{"algorithm":"gcra","limit":1,"Limit":2,"period":"1s"}`), 400, "", "", `unknown field "Limit"`},
		{request(`{"algorithm":"gcra","limit":1,"limit":2,"period":"1s"}`), 400, "", "", `field "limit" is there twice`},
		{request(`{"name":"login","algorithm":"gcra","limit":1,"period":"1s"}`), 400, "name", "gcra", `name is "login": leave it out`},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","durability":"relaxed"}`), 400, "durability", "gcra", "always durable here"},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","shadow":true}`), 400, "shadow", "gcra", "always false here"},
		{request(`{"algorithm":"gcra","limit":1,"period":"1s","on_error":"fail_open"}`), 400, "on_error", "gcra", "always fail_closed here"},
		{`{"key":"` + strings.Repeat("k", 64<<10) + `"}`, 413, "", "", "the body is longer than 65536 bytes"},
	} {
		s.ExpectProblem(t, http.MethodPost, "/api/send", c.body, c.status, c.field, c.algorithm, c.want)
	}
	answer, text := s.Call(t, http.MethodPost, "/api/send", request(good), "Content-Type", "text/plain")
	if answer.StatusCode != http.StatusUnsupportedMediaType || !strings.Contains(text, "send Content-Type: application/json") {
		t.Errorf("text/plain: %s %s", answer.Status, text)
	}
	for _, at := range []string{"/api/send", "/api/nothing"} {
		s.ExpectProblem(t, http.MethodGet, at, "", 404, "", "", "nothing has that path and method")
	}
	s.ExpectProblem(t, http.MethodPost, "/api/reset", `{}`, 400, "key", "", "key is empty")
	s.ExpectProblem(t, http.MethodPost, "/api/reset", `{"all":true}`, 400, "", "", `unknown field "all"`)
	s.ExpectProblem(t, http.MethodPost, "/api/reset", `{"key":"k\u0000"}`, 400, "key", "", "NUL")
	var got counts
	s.Post(t, "/api/send", request(`{"name":"playground","algorithm":"gcra","limit":1,"period":"1s","durability":"durable"}`), &got)
	if got.Allowed != 1 {
		t.Errorf("with fields that are always the same: %+v", got)
	}
}

// TestSendManyKeys: the number of keys in use is limited.
func TestSendManyKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i := range 1000 {
		must.OK(s.hub.Limiter.Allow(t.Context(), limiter.Policy{Name: PolicyName, Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}, fmt.Sprint(i)))(t)
	}
	body := `{"key":"k","times":1,"requests":[{"policy":` + three(limiter.GCRA) + `}]}`
	s.ExpectProblem(t, http.MethodPost, "/api/send", body, 503, "", "", "1000 keys are in use already: reset one")
	s.ExpectProblem(t, http.MethodGet, "/limited/gcra?limit=1&period=1h&key=k", "", 503, "", "", "1000 keys are in use already: reset one")
	var got counts
	s.Post(t, "/api/send", strings.Replace(body, `"k"`, `"7"`, 1), &got)
	s.Post(t, "/api/reset", `{"key":"7"}`, &struct{}{})
	s.Post(t, "/api/send", body, &got)
}
