package playground

import (
	"net/http"
	"strings"
	"testing"
)

// TestGuardHeaders: every answer except under /limited/ has the security headers.
func TestGuardHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	want := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	}
	for _, at := range []string{"/", "/api/setup", "/api/events", "/nothing", "/reports/none"} {
		answer, _ := s.Call(t, http.MethodGet, at, "")
		for name, value := range want {
			if got := answer.Header.Get(name); got != value {
				t.Errorf("%s: %s: %q, want %q", at, name, got, value)
			}
		}
	}
	answer, _ := s.Call(t, http.MethodGet, "/limited/gcra?limit=1&period=1h&key=k", "")
	for name := range want {
		if got := answer.Header.Get(name); got != "" {
			t.Errorf("/limited/: %s: %q", name, got)
		}
	}
}

// TestGuardHosts: a foreign host name is refused.
func TestGuardHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(config *Config) { config.Host = "localhost" })
	for _, at := range []string{"/", "/api/setup", "/api/events?key=k", "/limited/gcra?limit=1&period=1h&key=k"} {
		answer, text := s.Call(t, http.MethodGet, at, "", "Host", "evil.example")
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, "not the host that the playground listens on") {
			t.Errorf("%s: %s %s", at, answer.Status, text)
		}
	}
}

// TestGuardOtherSites: requests of another site's page are refused.
func TestGuardOtherSites(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const body = `{"key":"k"}`
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}, {"Origin", "null"},
	} {
		for _, at := range []string{"/api/reset", "/api/send", "/api/describe", "/api/replay?policies=[]"} {
			answer, text := s.Call(t, http.MethodPost, at, body, headers...)
			if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, `"error":"a page of another site`) {
				t.Errorf("%v %s: %s %s", headers, at, answer.Status, text)
			}
		}
	}
	for _, site := range []string{"cross-site", "same-site"} {
		for _, dest := range []string{"image", "empty", "iframe"} {
			for _, at := range []string{"/limited/gcra?limit=1&period=1h&key=k", "/api/events?key=k", "/api/setup"} {
				answer, text := s.Call(t, http.MethodGet, at, "", "Sec-Fetch-Site", site, "Sec-Fetch-Dest", dest)
				if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, `"error":"a page of another site`) {
					t.Errorf("%s, %s %s: %s %s", at, site, dest, answer.Status, text)
				}
			}
		}
	}
	if answer, _ := s.Call(t, http.MethodGet, "/", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"); answer.StatusCode != http.StatusOK {
		t.Errorf("a link to the page: %s", answer.Status)
	}
	for _, headers := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Origin", s.URL}, {}} {
		if answer, text := s.Call(t, http.MethodPost, "/api/reset", body, headers...); answer.StatusCode != http.StatusOK || text != "{}\n" {
			t.Errorf("%v: %s %s", headers, answer.Status, text)
		}
	}
}
