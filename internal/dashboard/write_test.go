package dashboard_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/dashboard"
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
		for _, row := range key.Rows {
			if row.Policy == "login" {
				return !row.BlockedUntil.IsZero(), len(key.Rows)
			}
		}
		return false, len(key.Rows)
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
	const body = `{"key":"alice","policy":"login","algorithm":"token_bucket"`
	for path, body := range map[string]string{"/api/block": body + `,"for":"1h"}`, "/api/unblock": body + `}`, "/api/reset": body + `}`} {
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
		if n := on.source.Calls("Block") + on.source.Calls("Unblock") + on.source.Calls("Reset"); n != 0 {
			t.Errorf("%d changes were made", n)
		}
	}
}

func TestNewToken(t *testing.T) {
	t.Parallel()
	if a, b := dashboard.NewToken(), dashboard.NewToken(); a == b || len(a) < 26 {
		t.Errorf("%q, %q", a, b)
	}
}
