package dashboard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard/sample"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// running is a dashboard that answers on the network.
type running struct {
	webpagetest.Page
	source *sample.Source
	log    *bytes.Buffer // read it after the last answer
}

const token = "the-token-of-the-tests"

// start serves a dashboard over the hostile sample until the test ends.
func start(t *testing.T, changes ...func(*dashboard.Config)) running {
	t.Helper()
	r := running{source: sample.New(true), log: &bytes.Buffer{}}
	config := dashboard.Config{Source: r.source, Version: "v1.2.3", Database: "sample", Token: token, Logger: slog.New(slog.NewTextHandler(r.log, nil))}
	for _, change := range changes {
		change(&config)
	}
	s := must.OK(dashboard.New(config))(t)
	r.Page = webpagetest.New(t, s)
	return r
}

// get and post send a request and decode the answer.
func (r running) get(t *testing.T, path string, into any, headers ...string) {
	t.Helper()
	r.decode(t, http.MethodGet, path, "", into, headers...)
}

func (r running) post(t *testing.T, path, body string, into any, headers ...string) {
	t.Helper()
	r.decode(t, http.MethodPost, path, body, into, headers...)
}

func (r running) decode(t *testing.T, method, path, body string, into any, headers ...string) {
	t.Helper()
	answer, text := r.Call(t, method, path, body, headers...)
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "application/json" || answer.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s %s: %s %v %s", path, body, answer.Status, answer.Header, text)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%s %s: %v: %s", path, body, err, text)
	}
}

func quoted(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

func TestSetup(t *testing.T) {
	t.Parallel()
	type setup struct {
		Version, Database string
		Hashed            bool
		RefreshMS         int64 `json:"refresh_ms"`
		Writable, Write   bool
	}
	r := start(t)
	for given, want := range map[string]bool{"": false, "wrong": false, token + "x": false, token[1:]: false, token: true} {
		var got setup
		r.get(t, "/api/setup", &got, dashboard.TokenHeader, given)
		if want := (setup{"v1.2.3", "sample", false, 3000, true, want}); got != want {
			t.Errorf("with the token %q: %+v, want %+v", given, got, want)
		}
	}
	r = start(t, func(c *dashboard.Config) { c.Token, c.Hashed, c.Refresh = "", true, time.Minute })
	var got setup
	if r.get(t, "/api/setup", &got, dashboard.TokenHeader, ""); got != (setup{"v1.2.3", "sample", true, 60_000, false, false}) {
		t.Errorf("without a token: %+v", got)
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	r := start(t)
	var policies struct {
		Version   int64
		Policies  []policies.Stored
		Overrides map[string]int
	}
	r.get(t, "/api/policies", &policies)
	if n := len(policies.Policies); n != 6 || policies.Version != 41 || policies.Policies[5].BlockFor != 15*time.Minute || policies.Overrides[policies.Policies[0].Name] != 1 || policies.Policies[0].Note != "per API key" {
		t.Errorf("policies: %+v", policies)
	}
	var denials struct {
		SlotS float64 `json:"slot_s"`
		Slots []dashboard.DenialSlot
	}
	for body, want := range map[string]struct {
		slotS float64
		least int
	}{`{}`: {600, 300}, `{"hours":1}`: {60, 12}, `{"hours":168}`: {3600, 300}, `{"key":"203.0.113.99"}`: {600, 5}} {
		if r.post(t, "/api/denials", body, &denials); denials.SlotS != want.slotS || len(denials.Slots) < want.least || len(denials.Slots) > 3*want.least || denials.Slots[0].Policy == "" {
			t.Errorf("denials of %s: %d slots of %v s", body, len(denials.Slots), denials.SlotS)
		}
	}
	var report struct{ Checks []struct{ Name string } }
	if r.get(t, "/api/doctor", &report); len(report.Checks) != 8 {
		t.Errorf("checks: %+v", report)
	}
	var keys dashboard.Keys
	if r.post(t, "/api/keys", `{"order":"denials","limit":2}`, &keys); len(keys.Rows) != 2 || !keys.More || keys.Rows[0].Key != "203.0.113.99" || keys.Rows[1].Denials != 1204 {
		t.Errorf("keys by denials: %+v", keys)
	}
	if r.post(t, "/api/keys", `{"policy":"budget","prefix":"account-4"}`, &keys); len(keys.Rows) != 1 || keys.Rows[0].Key != "account-42" {
		t.Errorf("keys of a policy and a prefix: %+v", keys)
	}
	if _, text := r.Call(t, http.MethodPost, "/api/keys", `{"prefix":"nothing begins so"}`); !strings.Contains(text, `"rows":[]`) {
		t.Errorf("no keys: %s", text)
	}
	for _, name := range append(sample.Hostile, "account-42") {
		var key struct {
			Stored       string
			Keys         []inspect.Key
			Reservations []inspect.Reservation
			Overrides    []inspect.Override
		}
		r.post(t, "/api/key", `{"key":`+quoted(name)+`}`, &key)
		if key.Stored != name || len(key.Keys) != 1 || key.Keys[0].Key != name {
			t.Errorf("%q: %+v", name, key)
		}
		if name == sample.Hostile[0] && (len(key.Overrides) != 1 || !key.Overrides[0].Unlimited || key.Overrides[0].Note != name || len(key.Reservations) != 1 || key.Reservations[0].ID != name) {
			t.Errorf("%q: %+v", name, key)
		}
		var why inspect.Why
		if r.post(t, "/api/why", `{"key":`+quoted(name)+`}`, &why); len(why.Policies) != 1 || why.Policies[0].InForce == nil || (why.Policies[0].Override != nil) != (name == sample.Hostile[0]) {
			t.Errorf("%q: why %+v", name, why)
		}
	}
}

// TestHistory: changes are told field by field.
func TestHistory(t *testing.T) {
	t.Parallel()
	r := start(t)
	var got struct {
		Changes []struct {
			Version           int64
			Policy, Key, Kind string
			Fields            []policyfile.Difference
		}
	}
	r.post(t, "/api/history", `{}`, &got)
	shown := map[int64]string{}
	for _, c := range got.Changes {
		shown[c.Version] = fmt.Sprint(c.Policy, " ", c.Kind, " ", c.Fields)
	}
	for version, want := range map[int64]string{
		42: "login added [{unlimited <nil> true}]",
		41: "login changed [{limit 10 5} {burst 20 10} {block_for <nil> 15m}]",
		40: "checkout added [{algorithm <nil> sliding_window_counter} {limit <nil> 30} {period <nil> 1h} {shadow <nil> true}]",
		39: "api added [{limit <nil> 6000} {until <nil> 2026-06-16T14:25:00Z}]",
		37: "signup removed [{algorithm fixed_window <nil>} {limit 3 <nil>} {period 1h <nil>} {aligned true <nil>}]",
	} {
		if shown[version] != want {
			t.Errorf("version %d: %s\nwant %s", version, shown[version], want)
		}
	}
	if r.post(t, "/api/history", `{"policy":"login","limit":2}`, &got); len(got.Changes) != 2 || got.Changes[1].Policy != "login" {
		t.Errorf("of login: %+v", got)
	}
}

// TestBadRequests: each is refused before the source is asked.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	r := start(t)
	long := quoted(strings.Repeat("k", 1025))
	for _, c := range []struct{ path, body, field, want string }{
		{"/api/key", `{}`, "key", "is empty"},
		{"/api/key", `{"key":` + long + `}`, "key", "is 1025 bytes long: 1024 at most"},
		{"/api/key", `{"key":"a\u0000b"}`, "key", "zero byte"},
		{"/api/key", "{\"key\":\"a\xff\"}", "", "not valid UTF-8"},
		{"/api/key", `{"key":"\\\ud83d\ude00\ud800"}`, "", "half a surrogate pair"},
		{"/api/key", `{"key":"\uDC00\ud800\u0041"}`, "", "half a surrogate pair"},
		{"/api/key", `{"key":"k","extra":1}`, "", `unknown field "extra"`},
		{"/api/key", `{"key":"k"}{}`, "", "more than one JSON value"},
		{"/api/key", `{"key":7}`, "key", "must be a string"},
		{"/api/why", `{}`, "key", "is empty"},
		{"/api/why", `{"key":"k","at":"noon"}`, "at", "must be a time"},
		{"/api/why", `{"key":"k","at":"0000-01-01T00:00:00Z"}`, "at", "must be after 1970"},
		{"/api/why", `{"key":"k","at":"1969-12-31T23:59:59Z"}`, "at", "must be after 1970"},
		{"/api/apply", `{"override":{"policy":"login","key":"k","limit":1,"until":"0001-01-01T00:00:00Z"}}`, "", "until is 0001-01-01T00:00:00Z: must be after 1970"},
		{"/api/apply", `{"override":{"policy":"login","key":"k","limit":1,"until":"1969-12-31T00:00:00Z"}}`, "", "must be after 1970"},
		{"/api/apply", `{"override":{"policy":"login","key":"k","limit":1,"no":1}}`, "", `unknown field "no"`},
		{"/api/key", ``, "", "is empty"},
		{"/api/key", `{"key":"` + strings.Repeat("x", 64<<10) + `"}`, "", "longer than 65536 bytes"},
		{"/api/keys", `{"order":"random"}`, "order", "must be share, denials or recent"},
		{"/api/keys", `{"limit":201}`, "limit", "must be from 1 to 200"},
		{"/api/keys", `{"limit":-1}`, "limit", "must be from 1 to 200"},
		{"/api/keys", `{"policy":"No Such"}`, "policy", "No Such"},
		{"/api/keys", `{"prefix":` + long + `}`, "prefix", "1024 at most"},
		{"/api/denials", `{"hours":2}`, "hours", "must be one of [1 6 24 168]"},
		{"/api/denials", `{"key":` + long + `}`, "key", "1024 at most"},
		{"/api/keys", `{"hours":2}`, "hours", "must be one of [1 6 24 168]"},
		{"/api/search", `{"prefix":""}`, "prefix", "is empty"},
		{"/api/search", `{"prefix":` + long + `}`, "prefix", "1024 at most"},
		{"/api/overrides", `{"policy":""}`, "policy", ""},
		{"/api/preview", `{}`, "policy", "send one of them"},
		{"/api/apply", `{"policy":{"name":"a"},"override":{"policy":"a","key":"k"}}`, "policy", "send one of them"},
		{"/api/apply", `{"policy":{"name":"login","algorithm":"gcra","limit":0,"period":"1m"}}`, "limit", "Limit 0: must be from"},
		{"/api/apply", `{"policy":{"name":"login","algorithm":"gcra","limit":"ten","period":"1m"}}`, "limit", "must be a number"},
		{"/api/apply", `{"policy":{"name":"login","algorithm":"gcra","limit":1,"period":"soon"}}`, "", "soon"},
		{"/api/apply", `{"policy":{"name":"login","algorithm":"gcra","limit":1,"period":"1m","extra":1}}`, "", "extra"},
		{"/api/apply", `{"policy":{"name":"../"},"delete":true}`, "policy", "../"},
		{"/api/apply", `{"override":{"policy":"login","key":"","limit":1}}`, "key", "is empty"},
		{"/api/apply", `{"override":{"policy":"login","key":"k"}}`, "", "changes nothing"},
		{"/api/apply", `{"override":{"policy":"login","key":"k","limit":1,"unlimited":true}}`, "", "excludes"},
		{"/api/apply", `{"override":{"policy":"login","key":"k","match":"prefix","blocked":true}}`, "match", "pglimit block"},
		{"/api/history", `{"limit":1000}`, "limit", "must be from 1 to 200"},
		{"/api/history", `{"policy":"../"}`, "policy", "../"},
		{"/api/block", `{"key":"k","policy":"login","algorithm":"gcra"}`, "for", "must be a duration"},
		{"/api/block", `{"key":"k","policy":"login","algorithm":"gcra","for":"-1m"}`, "for", "from 1µs"},
		{"/api/block", `{"key":"k","policy":"login","algorithm":"gcra","for":"1000000h"}`, "for", "100 years"},
		{"/api/block", `{"key":"k","policy":"login","algorithm":"best","for":"1m"}`, "algorithm", "best"},
		{"/api/block", `{"key":"k","policy":"","algorithm":"gcra","for":"1m"}`, "policy", ""},
		{"/api/unblock", `{"key":"k","policy":"login"}`, "algorithm", ""},
		{"/api/reset", `{"policy":"login","algorithm":"gcra"}`, "key", "is empty"},
		{"/api/reset", `{"key":"k","policy":"login","algorithm":"gcra","for":"1m"}`, "", `unknown field "for"`},
	} {
		answer, text := r.Call(t, http.MethodPost, c.path, c.body, dashboard.TokenHeader, token)
		var p struct{ Error, Field string }
		if err := json.Unmarshal([]byte(text), &p); err != nil || answer.StatusCode < 400 || answer.StatusCode >= 500 || p.Field != c.field || !strings.Contains(p.Error, c.want) {
			t.Errorf("%s %.80s: %s %s\nwant field %q, %q", c.path, c.body, answer.Status, text, c.field, c.want)
		}
	}
	var whole struct{ Stored string }
	if r.post(t, "/api/key", `{"key":"\\ud800\ud83d\uDE00"}`, &whole); whole.Stored != `\ud800😀` || r.source.Calls("Key") != 1 {
		t.Errorf("whole pairs are read as %q", whole.Stored)
	}
	if answer, text := r.Call(t, http.MethodPost, "/api/key", `{"key":"k"}`, "Content-Type", "text/plain"); answer.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("text: %s %s", answer.Status, text)
	}
	for _, at := range []string{"/api/key", "/api/nothing", "/api/block"} {
		if answer, text := r.Call(t, http.MethodGet, at, ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s %s", at, answer.Status, text)
		}
	}
	for _, method := range []string{"Keys", "History", "Block", "Unblock", "Reset", "Apply", "Current", "Search", "Overrides"} {
		if n := r.source.Calls(method); n != 0 {
			t.Errorf("%s was called %d times", method, n)
		}
	}
}

// TestGuard: answers have the page's policy, and other hosts and sites are refused.
func TestGuard(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *dashboard.Config) { c.Host = "localhost" })
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
		"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	if answer, _ := r.Call(t, http.MethodGet, "/", ""); answer.Header.Get("Content-Security-Policy") != policy {
		t.Errorf("%v", answer.Header)
	}
	for _, headers := range [][]string{{"Host", "evil.example"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}} {
		if answer, text := r.Call(t, http.MethodPost, "/api/key", `{"key":"k"}`, headers...); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %s %s", headers, answer.Status, text)
		}
	}
}

// TestSourceFails: an outage is 503 with a message, a rejection 400, and no key or token
// is in the log.
func TestSourceFails(t *testing.T) {
	t.Parallel()
	r := start(t)
	key := "secret customer"
	requests := [][3]string{
		{http.MethodGet, "/api/policies"}, {http.MethodPost, "/api/denials", `{"key":"` + key + `"}`}, {http.MethodGet, "/api/doctor"},
		{http.MethodPost, "/api/history", `{}`}, {http.MethodPost, "/api/keys", `{"prefix":"` + key + `"}`}, {http.MethodPost, "/api/key", `{"key":"` + key + `"}`},
	}
	target := `{"key":"` + key + `","policy":"login","algorithm":"token_bucket"`
	for _, verb := range []string{"unblock", "reset"} {
		requests = append(requests, [3]string{http.MethodPost, "/api/" + verb, target + `}`})
	}
	requests = append(requests, [3]string{http.MethodPost, "/api/block", target + `,"for":"1m"}`})
	for _, c := range []struct {
		err    error
		status int
		want   string
	}{
		{fmt.Errorf("pglimit: %w: row of %s", limiter.ErrUnavailable, key), http.StatusServiceUnavailable, "database unavailable"},
		{errors.New("it broke"), http.StatusServiceUnavailable, "it broke"},
		{limiter.ErrInvalid, http.StatusBadRequest, "invalid"},
		{nil, http.StatusOK, ""},
	} {
		r.source.Break(c.err)
		for _, q := range requests {
			answer, text := r.Call(t, q[0], q[1], q[2], dashboard.TokenHeader, token)
			if answer.StatusCode != c.status || !strings.Contains(text, c.want) {
				t.Errorf("%v, %s: %s %s", c.err, q[1], answer.Status, text)
			}
		}
	}
	if log := r.log.String(); strings.Contains(log, "secret") || strings.Contains(log, token) || !strings.Contains(log, "verb=block") {
		t.Errorf("logged: %s", log)
	}
}

// slow is a Source whose Doctor does not answer before its context ends, or before it is
// released if it can be.
type slow struct {
	*sample.Source
	called, release chan struct{}
}

func (s slow) Doctor(ctx context.Context) (doctor.Report, error) {
	s.called <- struct{}{}
	if s.release != nil {
		<-s.release
		return s.Source.Doctor(ctx)
	}
	<-ctx.Done()
	return doctor.Report{}, ctx.Err()
}

// TestSlowSource: a call is bounded in time, and calls are bounded in number.
func TestSlowSource(t *testing.T) {
	t.Parallel()
	source := slow{Source: sample.New(false), called: make(chan struct{}, 1)}
	brief := func(c *dashboard.Config) { c.Source, c.Timeout = source, 20*time.Millisecond }
	start(t, brief).ExpectProblem(t, http.MethodGet, "/api/doctor", "", http.StatusServiceUnavailable, "", "", "deadline exceeded")
	<-source.called

	source.release = make(chan struct{})
	release := sync.OnceFunc(func() { close(source.release) })
	defer release()
	r := start(t, brief)
	const most = 4
	var all sync.WaitGroup
	for range most {
		all.Go(func() { _, _ = r.Call(t, http.MethodGet, "/api/doctor", "") })
	}
	for range most {
		<-source.called
	}
	r.ExpectProblem(t, http.MethodGet, "/api/policies", "", http.StatusServiceUnavailable, "", "", "too many requests are in flight")
	release()
	all.Wait()
	var policies struct{ Version int64 }
	if r.get(t, "/api/policies", &policies); policies.Version != 41 {
		t.Errorf("afterwards: %+v", policies)
	}
}
