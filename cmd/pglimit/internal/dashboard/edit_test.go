package dashboard_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/policies"
)

const (
	login    = `"name":"login","algorithm":"token_bucket","period":"1m","block_for":"15m","note":"after the attack in May"`
	checkout = `"name":"checkout","algorithm":"sliding_window_counter","limit":30,"period":"1h","note":"measures before it denies"`
)

// TestPreview: the difference, and what would have been denied where that can be known.
func TestPreview(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, c := range []struct{ body, fields, denied, basis, facts string }{
		{`{"policy":{` + login + `,"limit":5,"burst":10}}`, "", "5", "the limits stay", "5 3 0 of 53, 10"},
		{`{"policy":{` + login + `,"limit":3,"burst":4}}`, "limit 5 3, burst 10 4", "", "replay an access log", "5 3 0 of 53, 29"},
		{`{"policy":{` + login + `,"limit":5,"burst":10,"shadow":true}}`, "shadow <nil> true", "0", "a shadow policy denies nothing", "5 3 0 of 53, 10"},
		{`{"policy":{` + login + `,"limit":3,"shadow":true}}`, "limit 5 3, burst 10 <nil>, shadow <nil> true", "0", "a shadow", "5 3 0 of 53, 35"},
		{`{"policy":{"name":"login","algorithm":"fixed_window","limit":5,"period":"1m"}}`, "algorithm token_bucket fixed_window, burst 10 <nil>, block_for 15m <nil>", "", "start from zero", "5 3 0 of 53, 24"},
		{`{"policy":{"name":"login","algorithm":"gcra","limit":5,"period":"1m"}}`, "algorithm token_bucket gcra, burst 10 <nil>, block_for 15m <nil>", "", "not counted one by one", "5 3 0 of 53, 24"},
		{`{"policy":{"name":"login"},"delete":true}`, "algorithm token_bucket <nil>, limit 5 <nil>, period 1m <nil>, burst 10 <nil>, block_for 15m <nil>, note after the attack in May <nil>", "", "compiled in", "5 3 0 of 53, 53"},
		{`{"policy":{` + checkout + `}}`, "shadow true <nil>", "77", "with the 77 that the shadow", "77 0 77 of 15, 0"},
		{`{"policy":{"name":"new","algorithm":"gcra","limit":5,"period":"1m"}}`, "algorithm <nil> gcra, limit <nil> 5, period <nil> 1m", "", "no such policy", "0 0 0 of 0, 0"},
		{`{"override":{"policy":"login","key":"alice","limit":1}}`, "limit <nil> 1", "", "replay", "4 1 0 of 1, 1"},
		{`{"override":{"policy":"login","key":"alice","unlimited":true}}`, "unlimited <nil> true", "0", "never denied", "4 1 0 of 1, 1"},
		{`{"override":{"policy":"login","key":"alice","blocked":true}}`, "blocked <nil> true", "", "all requests would be denied", "4 1 0 of 1, 1"},
		{`{"override":{"policy":"login","key":"mallory","shadow":false}}`, "shadow <nil> false", "", "no denials are counted", "0 0 0 of 0, 0"},
		{`{"override":{"policy":"budget","key":"account-17"},"delete":true}`, "unlimited true <nil>, note the house <nil>", "", "not counted", "0 0 0 of 1, 0"},
		{`{"override":{"policy":"gone","key":"alice","limit":1}}`, "limit <nil> 1", "", "no such policy", "0 0 0 of 0, 0"},
	} {
		var p dashboard.Preview
		r.post(t, "/api/preview", c.body, &p, dashboard.TokenHeader, token)
		var fields []string
		for _, f := range p.Fields {
			fields = append(fields, fmt.Sprint(f.Name, " ", f.Before, " ", f.After))
		}
		denied := ""
		if p.Effect.Denied != nil {
			denied = fmt.Sprint(*p.Effect.Denied)
		}
		f := p.Effect.Facts
		facts := fmt.Sprintf("%d %d %d of %d, %d", f.Denials, f.Blocked, f.Shadowed, f.Keys, f.Above)
		if got := strings.Join(fields, ", "); got != c.fields || denied != c.denied || !strings.Contains(p.Effect.Basis, c.basis) || facts != c.facts || p.Version != 41 {
			t.Errorf("%s:\n%s; %q, %s; %s, version %d\nwant %s; %q, %s; %s", c.body, got, denied, p.Effect.Basis, facts, p.Version, c.fields, c.denied, c.basis, c.facts)
		}
	}
	if n := r.source.Calls("Apply"); n != 0 {
		t.Errorf("a preview made %d changes", n)
	}
}

// TestApply: an edit is made if nothing was changed since its preview, and is in the log
// without the key.
func TestApply(t *testing.T) {
	t.Parallel()
	r := start(t)
	apply := func(body string) int64 {
		t.Helper()
		var done struct{ Version int64 }
		r.post(t, "/api/apply", body, &done, dashboard.TokenHeader, token)
		return done.Version
	}
	for version, body := range []string{
		`{"policy":{` + login + `,"limit":3,"burst":4},"version":41}`, `{"policy":{"name":"new","algorithm":"gcra","limit":5,"period":"1m"},"version":42}`,
		`{"override":{"policy":"login","key":"mallory","blocked":true,"note":"why"},"version":43}`, `{"override":{"policy":"budget","key":"account-17"},"delete":true,"version":44}`,
		`{"policy":{"name":"crawl"},"delete":true,"version":45}`,
	} {
		if got := apply(body); got != int64(42+version) {
			t.Errorf("%s: version %d", body, got)
		}
	}
	r.ExpectConflict(t, `{"policy":{"name":"new"},"delete":true,"version":45}`)
	var all struct {
		Policies  []policies.Stored
		Overrides map[string]int
	}
	r.get(t, "/api/policies", &all)
	got := map[string]float64{}
	for _, p := range all.Policies {
		got[p.Name] = p.Limit
	}
	if len(got) != 6 || got["login"] != 3 || got["new"] != 5 || got["crawl"] != 0 || all.Overrides["login"] != 2 || all.Overrides["budget"] != 0 {
		t.Errorf("%+v, %+v", got, all.Overrides)
	}
	var overrides dashboard.Overrides
	if r.post(t, "/api/overrides", `{"policy":"login"}`, &overrides); len(overrides.Overrides) != 2 || overrides.Overrides[1].Key != "mallory" || !overrides.Overrides[1].Blocked {
		t.Errorf("%+v", overrides)
	}
	if log := r.log.String(); strings.Contains(log, "mallory") || !strings.Contains(log, "policy=login override=true delete=false version=44") {
		t.Errorf("logged: %s", log)
	}
}

// ExpectConflict sends an edit that must be refused with 409.
func (r running) ExpectConflict(t *testing.T, body string) {
	t.Helper()
	if answer, text := r.Call(t, http.MethodPost, "/api/apply", body, dashboard.TokenHeader, token); answer.StatusCode != http.StatusConflict || !strings.Contains(text, "changed meanwhile") {
		t.Errorf("%s: %s %s", body, answer.Status, text)
	}
}
