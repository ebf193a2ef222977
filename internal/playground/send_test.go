package playground

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// three is a policy of each algorithm that allows three at once, and gives back too
// slowly to matter.
func three(a limiter.Algorithm) string {
	return fmt.Sprintf(`{"algorithm":%q,"limit":3,"period":"1000h"}`, a)
}

func TestSetup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var setup struct {
		Version, Database string
		Policies          []limiter.Policy
		MaxLogBytes       int64 `json:"max_log_bytes"`
	}
	_, text := s.call(t, http.MethodGet, "/api/setup", "")
	strict(t, text, &setup)
	if setup.Version != "v1.2.3" || setup.Database != "memory" || len(setup.Policies) != len(limiter.Algorithms()) || setup.MaxLogBytes != maxUpload {
		t.Fatalf("got %+v", setup)
	}
	for i, p := range setup.Policies {
		if err := p.Validate(); err != nil || p.Algorithm != limiter.Algorithms()[i] {
			t.Errorf("policy %d: %+v, %v", i, p, err)
		}
	}
}

// TestSend: each ask is sent so many times, at once, and no more is allowed than the
// limit says; every stream of the key, and no other, is told of each decision.
func TestSend(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	one, two, other := s.watch(t, "alice"), s.watch(t, "alice"), s.watch(t, "bob")
	var asks []string
	for _, a := range limiter.Algorithms() {
		asks = append(asks, fmt.Sprintf(`{"policy":%s,"cost":1}`, three(a)))
	}
	var sum counts
	var senders sync.WaitGroup
	var mu sync.Mutex
	for range 4 {
		senders.Go(func() {
			var got counts
			s.post(t, "/api/send", `{"key":"alice","times":5,"asks":[`+strings.Join(asks, ",")+`]}`, &got)
			mu.Lock()
			defer mu.Unlock()
			sum.Allowed, sum.Delayed, sum.Denied = sum.Allowed+got.Allowed, sum.Delayed+got.Delayed, sum.Denied+got.Denied
		})
	}
	senders.Wait()
	// The queue lets one leave at once and two wait.
	if want := (counts{Allowed: 3*6 + 1, Delayed: 2, Denied: 17 * 7}); sum != want {
		t.Errorf("sent %+v, want %+v", sum, want)
	}
	for _, w := range []*watcher{one, two} {
		outcomes, allowed := map[string]int{}, map[limiter.Algorithm]int{}
		for range 4 * 5 * 7 {
			var d decision
			w.until(t, "decision", &d)
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
	s.post(t, "/api/send", `{"key":"bob","times":1,"asks":[`+asks[2]+`]}`, &got)
	if name, data := other.next(t); name != "decision" || got != (counts{Allowed: 1}) {
		t.Errorf("bob's first event: %s %s, %+v", name, data, got)
	}
}

// TestDecision holds each kind of decision to what is told of it.
func TestDecision(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.watch(t, "k")
	send := func(policy string, cost float64) (d decision) {
		t.Helper()
		var got counts
		s.post(t, "/api/send", fmt.Sprintf(`{"key":"k","times":1,"asks":[{"policy":%s,"cost":%v}]}`, policy, cost), &got)
		w.until(t, "decision", &d)
		if now := float64(time.Now().UnixMilli()); math.Abs(d.At-now) > 60_000 {
			t.Errorf("at %v, and now is %v", d.At, now)
		}
		return d
	}
	fixed := `{"algorithm":"fixed_window","limit":3,"period":"1000h"}`
	d := send(fixed, 2)
	if d.Status != 200 || d.Outcome != "allowed" || d.Cost != 2 || d.Limit != 3 || d.Burst != 3 || d.Level != 2 || d.Remaining != 1 ||
		*d.RetryAfter != 0 || *d.ResetAfter <= 0 || *d.Delay != 0 || d.Reason != "" || d.Body != "" {
		t.Errorf("allowed: %+v", d)
	}
	d = send(fixed, 2)
	if d.Status != 429 || d.Outcome != "denied" || d.Level != 2 || *d.RetryAfter <= 3599 || d.Reason != limiter.ReasonLimit || !strings.Contains(d.Body, `"status":429`) {
		t.Errorf("denied: %+v", d)
	}
	if d = send(fixed, 4); d.Status != 429 || d.RetryAfter != nil || d.Reason != limiter.ReasonLimit {
		t.Errorf("denied for ever: %+v", d)
	}
	if d = send(`{"algorithm":"gcra","limit":1,"period":"1000h","block_for":"1h"}`, 1); d.Status != 200 {
		t.Errorf("before the block: %+v", d)
	}
	send(`{"algorithm":"gcra","limit":1,"period":"1000h","block_for":"1h"}`, 1)
	if d = send(`{"algorithm":"gcra","limit":1,"period":"1000h","block_for":"1h"}`, 1); d.Status != 429 || d.Reason != limiter.ReasonBlocked {
		t.Errorf("blocked: %+v", d)
	}
	queue := `{"algorithm":"leaky_bucket_queue","limit":1,"period":"1000h","burst":2}`
	if d = send(queue, 1); d.Outcome != "allowed" || *d.Delay != 0 {
		t.Errorf("first in the queue: %+v", d)
	}
	if d = send(queue, 1); d.Status != 200 || d.Outcome != "delayed" || *d.Delay < 3599*1000 {
		t.Errorf("second in the queue: %+v", d)
	}
}

func TestSendErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ask := func(policy string) string { return `{"key":"k","times":1,"asks":[{"policy":` + policy + `}]}` }
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
		{`{"key":"k","times":1,"asks":[{"policy":` + good + `}]} {}`, 400, "", "", "more than one JSON value"},
		{`{"keys":"k"}`, 400, "", "", `unknown field "keys"`},
		{`{"key":7}`, 400, "key", "", "key is a JSON number: must be a string"},
		{`{"times":1}`, 400, "key", "", "key is empty: name somebody"},
		{`{"key":"` + strings.Repeat("k", 257) + `"}`, 400, "key", "", "key is 257 bytes long: 256 at most"},
		{`{"key":"k\u0000"}`, 400, "key", "", "key \"k\\x00\": holds a NUL byte"},
		{`{"key":"k","times":0}`, 400, "times", "", "times is 0: must be from 1 to 100"},
		{`{"key":"k","times":101}`, 400, "times", "", "times is 101: must be from 1 to 100"},
		{`{"key":"k","times":1.5}`, 400, "times", "", "times is a JSON number 1.5: must be a whole number"},
		{`{"key":"k","times":1}`, 400, "asks", "", "asks are 0: must be from 1 to 7"},
		{`{"key":"k","times":1,"asks":[` + strings.Repeat(`{"policy":`+good+`},`, 7) + `{"policy":` + good + `}]}`, 400, "asks", "", "asks are 8"},
		{`{"key":"k","times":1,"asks":[{"polciy":1}]}`, 400, "", "", `unknown field "polciy"`},
		{`{"key":"k","times":1,"asks":[{"policy":` + good + `,"cost":0}]}`, 400, "cost", "gcra", "cost 0: must be positive"},
		{`{"key":"k","times":1,"asks":[{"policy":` + good + `,"cost":-1}]}`, 400, "cost", "gcra", "cost -1: must be positive"},
		{`{"key":"k","times":1,"asks":[{"cost":1}]}`, 400, "policy", "", "policy is missing"},
		{ask(`7`), 400, "policy", "", "policy is a JSON number: must be an object"},
		{ask(`{}`), 400, "algorithm", "", `Algorithm "": must be one of`},
		{ask(`{"algorithm":"bucket","limit":1,"period":"1s"}`), 400, "algorithm", "bucket", `Algorithm "bucket": must be one of`},
		{ask(`{"algorithm":"gcra","limit":0,"period":"1s"}`), 400, "limit", "gcra", "Limit 0: must be from 1e-9"},
		{ask(`{"algorithm":"gcra","limit":"1","period":"1s"}`), 400, "limit", "gcra", "limit is a JSON string: must be a number"},
		{ask(`{"algorithm":"gcra","limit":1,"period":1}`), 400, "period", "gcra", "period is a JSON number: must be a string"},
		{ask(`{"algorithm":"gcra","limit":1,"period":"soon"}`), 400, "period", "gcra", `Period "soon": must be a duration such as "1m30s"`},
		{ask(`{"algorithm":"gcra","limit":1}`), 400, "period", "gcra", "Period 0s: must be positive"},
		{ask(`{"algorithm":"gcra","limit":1,"period":"1s","tick":"1ms"}`), 400, "tick", "gcra", "Tick 1ms: is for leaky_bucket only"},
		{ask(`{"algorithm":"gcra","limit":1,"period":"1s","aligned":"yes"}`), 400, "aligned", "gcra", "aligned is a JSON string: must be true or false"},
		{ask(`{"algorithm":"gcra","limit":1,"period":"1s","block_for":"1ns"}`), 400, "block_for", "gcra", "BlockFor 1ns: must be whole microseconds"},
		{ask(`{"algorithm":"gcra","limit":1,"period":"1s","colour":"red"}`), 400, "", "gcra", `unknown field "colour"`},
		{ask(`{"name":"login","algorithm":"gcra","limit":1,"period":"1s"}`), 400, "name", "gcra", `name is "login": leave it out`},
		{ask(`{"algorithm":"gcra","limit":1,"period":"1s","durability":"relaxed"}`), 400, "durability", "gcra", "always durable here"},
		{ask(`{"algorithm":"gcra","limit":1,"period":"1s","on_error":"fail_open"}`), 400, "on_error", "gcra", "always fail_closed here"},
		{`{"key":"` + strings.Repeat("k", maxJSON) + `"}`, 413, "", "", "the body is longer than 65536 bytes"},
	} {
		expectProblem(t, s, http.MethodPost, "/api/send", c.body, c.status, c.field, c.algorithm, c.want)
	}
	answer, text := s.call(t, http.MethodPost, "/api/send", ask(good), "Content-Type", "text/plain")
	if answer.StatusCode != http.StatusUnsupportedMediaType || !strings.Contains(text, "send Content-Type: application/json") {
		t.Errorf("text/plain: %s %s", answer.Status, text)
	}
	for _, at := range []string{"/api/send", "/api/nothing"} {
		expectProblem(t, s, http.MethodGet, at, "", 404, "", "", "nothing to be had by that path and method")
	}
	expectProblem(t, s, http.MethodPost, "/api/reset", `{}`, 400, "key", "", "key is empty")
	expectProblem(t, s, http.MethodPost, "/api/reset", `{"all":true}`, 400, "", "", `unknown field "all"`)
	expectProblem(t, s, http.MethodPost, "/api/reset", `{"key":"k\u0000"}`, 400, "key", "", "NUL")
	var got counts
	s.post(t, "/api/send", ask(`{"name":"playground","algorithm":"gcra","limit":1,"period":"1s","durability":"durable"}`), &got)
	if got.Allowed != 1 {
		t.Errorf("with what it is always: %+v", got)
	}
}

// expectProblem sends a request that cannot be answered.
func expectProblem(t *testing.T, s *site, method, at, body string, status int, field, algorithm, want string) {
	t.Helper()
	answer, text := s.call(t, method, at, body)
	var p problem
	strict(t, text, &p)
	if answer.StatusCode != status || p.Field != field || string(p.Algorithm) != algorithm || !strings.Contains(p.Message, want) {
		t.Errorf("%s %.100s: %s %s\nwant %d, field %q, algorithm %q, %q", at, body, answer.Status, text, status, field, algorithm, want)
	}
	if strings.Contains(p.Message, "pglimit: ") || len([]rune(p.Message)) > maxSentence || strings.Contains(p.Message, "\n") {
		t.Errorf("%s %s: %q", at, body, p.Message)
	}
}

// TestReset: the key is as new for every algorithm, and its streams know.
func TestReset(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.watch(t, "k")
	for range 2 {
		for _, a := range limiter.Algorithms() {
			var got counts
			s.post(t, "/api/send", `{"key":"k","times":4,"asks":[{"policy":`+three(a)+`}]}`, &got)
			if got.Allowed+got.Delayed != 3 || got.Denied != 1 {
				t.Errorf("%s: %+v", a, got)
			}
		}
		s.post(t, "/api/reset", `{"key":"k"}`, &struct{}{})
		w.until(t, "reset", &struct{}{})
		if left := s.hub.all(); len(left) != 0 {
			t.Errorf("still to be forgotten: %v", left)
		}
	}
}

// TestNoDatabase: what takes the database says so, and the rest goes on.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(config *Config) {
		config.Limiter = func(config *limiter.Config) (*limiter.Limiter, error) { return limiter.New(pool, config) }
	})
	on := listen(t, s)
	defer func() {
		if err := s.Close(context.Background()); err == nil || !strings.Contains(err.Error(), `forget "k"`) {
			t.Errorf("Close: %v", err) // what was asked may have been counted
		}
	}()
	expectProblem(t, on, http.MethodPost, "/api/send", `{"key":"k","times":9,"asks":[{"policy":`+three(limiter.GCRA)+`}]}`, 503, "", "gcra", "database unavailable")
	if answer, text := on.call(t, http.MethodGet, "/limited/gcra?limit=1&period=1h&key=k", ""); answer.StatusCode != 503 || answer.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("/limited/: %s %s", answer.Status, text)
	}
	expectProblem(t, on, http.MethodPost, "/api/reset", `{"key":"k"}`, 503, "", "", "database unavailable")
	var p problem
	w := on.watch(t, "k")
	if name, data := w.next(t); name != "problem" {
		t.Errorf("%s %s", name, data)
	} else if strict(t, data, &p); !strings.Contains(p.Message, "database unavailable") {
		t.Errorf("%+v", p)
	}
	w.stop()
	if answer, text := on.call(t, http.MethodGet, "/api/setup", ""); answer.StatusCode != 200 {
		t.Errorf("setup: %s %s", answer.Status, text)
	}
}

// TestManyKeys: no more are taken than can be forgotten.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i := range maxKeys {
		if _, err := s.limiter.Allow(t.Context(), limiter.Policy{Name: PolicyName, Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	body := `{"key":"k","times":1,"asks":[{"policy":` + three(limiter.GCRA) + `}]}`
	expectProblem(t, s, http.MethodPost, "/api/send", body, 503, "", "", "1000 keys are in use already: reset one")
	expectProblem(t, s, http.MethodGet, "/limited/gcra?limit=1&period=1h&key=k", "", 503, "", "", "1000 keys are in use already: reset one")
	var got counts
	s.post(t, "/api/send", strings.Replace(body, `"k"`, `"7"`, 1), &got)
	s.post(t, "/api/reset", `{"key":"7"}`, &struct{}{})
	s.post(t, "/api/send", body, &got)
}

// TestForgets: at the end nothing is left of what was counted.
func TestForgets(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := limiter.Policy{Name: PolicyName, Algorithm: limiter.TokenBucket, Limit: 3, Period: 1000 * time.Hour}
	for _, key := range []string{"alice", "bob"} {
		var got counts
		s.post(t, "/api/send", `{"key":"`+key+`","times":1,"asks":[{"policy":`+three(p.Algorithm)+`}]}`, &got)
	}
	if err := s.forgetAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"alice", "bob"} {
		if r, err := s.limiter.Check(t.Context(), p, key, 0); err != nil || r.Level != 0 {
			t.Errorf("%s: %+v, %v", key, r, err)
		}
	}
}
