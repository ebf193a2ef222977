package dashboard_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard/sample"
	"github.com/pglimit/pglimit/internal/must"
)

// TestWrites: block, unblock and reset work with the token.
func TestWrites(t *testing.T) {
	t.Parallel()
	r := start(t)
	const target = `"key":"alice","policy":"login","algorithm":"token_bucket"`
	blocked := func() (bool, int) {
		t.Helper()
		var key dashboard.Key
		r.post(t, "/api/key", `{"key":"alice"}`, &key)
		for _, row := range key.Keys {
			if row.Policy == "login" {
				return row.BlockedUntil != nil, len(key.Keys)
			}
		}
		return false, len(key.Keys)
	}
	change := func(verb, more string) bool {
		t.Helper()
		var done struct{ Found bool }
		r.post(t, "/api/"+verb, `{`+target+more+`}`, &done, dashboard.TokenHeader, token, "Sec-Fetch-Site", "same-origin")
		return done.Found
	}
	if is, _ := blocked(); is {
		t.Error("blocked at first")
	}
	if is, _ := blocked(); !change("block", `,"for":"1h"`) || is {
		t.Error("not blocked")
	}
	if is, _ := blocked(); !is {
		t.Error("the block is not there")
	}
	if !change("unblock", "") || change("unblock", "") {
		t.Error("unblock: not found, or found twice")
	}
	if is, _ := blocked(); is {
		t.Error("still blocked")
	}
	if !change("reset", "") || change("reset", "") {
		t.Error("reset: not found, or found twice")
	}
	if _, rows := blocked(); rows != 2 {
		t.Errorf("%d rows are left", rows)
	}
	log := r.log.String()
	for _, want := range []string{"verb=block policy=login algorithm=token_bucket for=1h0m0s", "verb=unblock policy=login", "verb=reset policy=login"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q: %s", want, log)
		}
	}
}

// TestWritesNeedToken: without the token, or with another, nothing is changed; neither is
// it without a token of the server, or by another site that has it.
func TestWritesNeedToken(t *testing.T) {
	t.Parallel()
	r, readOnly := start(t), start(t, func(c *dashboard.Config) { c.Token = "" })
	const body, edit = `{"key":"alice","policy":"login","algorithm":"token_bucket"`, `{"override":{"policy":"login","key":"alice","limit":1}}`
	for path, body := range map[string]string{"/api/block": body + `,"for":"1h"}`, "/api/unblock": body + `}`, "/api/reset": body + `}`, "/api/apply": edit, "/api/preview": edit} {
		for _, c := range []struct {
			on      running
			want    string
			headers []string
		}{
			{r, "open the URL", nil},
			{r, "open the URL", []string{dashboard.TokenHeader, ""}},
			{r, "open the URL", []string{dashboard.TokenHeader, "wrong"}},
			{r, "open the URL", []string{dashboard.TokenHeader, token[:len(token)-1]}},
			{r, "open the URL", []string{"Cookie", dashboard.TokenHeader + "=" + token, "Authorization", "Bearer " + token}},
			{r, "a page of another site", []string{dashboard.TokenHeader, token, "Sec-Fetch-Site", "cross-site"}},
			{r, "a page of another site", []string{dashboard.TokenHeader, token, "Sec-Fetch-Site", "same-site"}},
			{r, "a page of another site", []string{dashboard.TokenHeader, token, "Origin", "http://evil.example"}},
			{r, "a page of another site", []string{dashboard.TokenHeader, token, "Origin", "null"}},
			{r, "not the host", []string{dashboard.TokenHeader, token, "Host", "evil.example"}},
			{readOnly, "start it with pglimit dashboard --write", nil},
			{readOnly, "start it with pglimit dashboard --write", []string{dashboard.TokenHeader, ""}},
			{readOnly, "start it with pglimit dashboard --write", []string{dashboard.TokenHeader, token}},
		} {
			if c.want == "not the host" {
				c.on = start(t, func(c *dashboard.Config) { c.Host = "localhost" })
			}
			answer, text := c.on.Call(t, http.MethodPost, path, body, c.headers...)
			if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, c.want) {
				t.Errorf("%s %v: %s %s", path, c.headers, answer.Status, text)
			}
		}
		// The token is not taken from the address.
		if answer, _ := r.Call(t, http.MethodPost, path+"?token="+token+"&"+dashboard.TokenHeader+"="+token, body); answer.StatusCode != http.StatusForbidden {
			t.Errorf("%s with the token in the query: %s", path, answer.Status)
		}
	}
	for _, on := range []running{r, readOnly} {
		if n := on.source.Calls("Block") + on.source.Calls("Unblock") + on.source.Calls("Reset") + on.source.Calls("Apply") + on.source.Calls("Current"); n != 0 {
			t.Errorf("%d changes were made", n)
		}
	}
}

// FuzzBody: whatever the body is, each path answers it with JSON that is no internal
// error, and changes nothing without the token.
func FuzzBody(f *testing.F) {
	source := sample.New(true)
	s := must.OK(dashboard.New(dashboard.Config{Source: source, Token: token, Logger: slog.New(slog.DiscardHandler)}))(f)
	paths := []string{"/api/key", "/api/denials", "/api/keys", "/api/history", "/api/block", "/api/unblock", "/api/reset", "/api/search", "/api/overrides", "/api/preview", "/api/apply"}
	for i := range paths {
		for _, body := range []string{
			`{"key":"alice","stored":true}`, `{"order":"recent","policy":"login","prefix":"1","limit":9}`, `{"policy":"login","limit":1}`,
			`{"key":"alice","policy":"login","algorithm":"token_bucket","for":"1h"}`, `{"key":"alice","policy":"login","algorithm":"token_bucket"}`,
			`{"key":"\u0000"}`, `{"key":"\ud800"}`, "{\"key\":\"\xff\"}", `{"key":null}`, `{"limit":1e999}`, `{"limit":-9223372036854775808}`, `{"for":"9999999h"}`,
			`{"policy":{"name":"login","algorithm":"gcra","limit":1,"period":"1m"}}`, `{"override":{"policy":"login","key":"alice","limit":1}}`, `{"policy":{"name":"login"},"delete":true}`,
			``, `null`, `[]`, `{`, strings.Repeat("[", 10_000), `{"key":"k"}{"key":"l"}`, `{"KEY":"k"}`, `{"key":"a","key":"b"}`,
		} {
			f.Add(byte(i), false, body)
			f.Add(byte(i), true, body)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, withToken bool, body string) {
		path := paths[int(which)%len(paths)]
		changes := func() int {
			return source.Calls("Block") + source.Calls("Unblock") + source.Calls("Reset") + source.Calls("Apply")
		}
		before := changes()
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Host = "localhost"
		if withToken {
			r.Header.Set(dashboard.TokenHeader, token)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %.200q: %d %s", path, body, w.Code, w.Body)
		}
		if !withToken && changes() != before {
			t.Errorf("%s %.200q: a change without the token", path, body)
		}
	})
}
