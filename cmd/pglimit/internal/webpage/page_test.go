package webpage_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
)

// page returns a page with a POST of /api/change, on localhost.
func page(t *testing.T, files fstest.MapFS) webpagetest.Page {
	t.Helper()
	mux := http.NewServeMux()
	for _, path := range []string{"POST /api/change", "GET /bare"} {
		mux.HandleFunc(path, func(http.ResponseWriter, *http.Request) {})
	}
	guard := webpage.Guard{Name: "page", Host: "localhost", Policy: "a policy", Bare: func(path string) bool { return path == "/bare" }}
	return webpagetest.New(t, must.OK(guard.Handler(mux, files))(t))
}

// TestFiles: each file is served with its type, and a client that has it receives no second
// copy.
func TestFiles(t *testing.T) {
	t.Parallel()
	s := page(t, fstest.MapFS{
		"index.html": {Data: []byte("<!doctype html>")}, "web/a.js": {Data: []byte("1")}, "a.css": {Data: []byte("a {}")}, "a.svg": {Data: []byte("<svg/>")},
	})
	for at, want := range map[string][2]string{
		"/": {"text/html; charset=utf-8", "<!doctype html>"}, "/a.js": {"text/javascript; charset=utf-8", "1"},
		"/a.css": {"text/css; charset=utf-8", "a {}"}, "/a.svg": {"image/svg+xml", "<svg/>"},
	} {
		answer, text := s.Call(t, http.MethodGet, at, "")
		if got := [2]string{answer.Header.Get("Content-Type"), text}; got != want || answer.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %s %q %v", at, answer.Status, got, answer.Header)
		}
		if answer, text := s.Call(t, http.MethodGet, at, "", "If-None-Match", answer.Header.Get("ETag")); answer.StatusCode != http.StatusNotModified || text != "" {
			t.Errorf("%s again: %s %q", at, answer.Status, text)
		}
	}
	for _, at := range []string{"/base.css", "/icon.svg"} { // of all pages
		if answer, _ := s.Call(t, http.MethodGet, at, ""); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", at, answer.Status)
		}
	}
	for _, at := range []string{"/index.html", "/web/", "/look.go", "/nothing.js"} {
		if answer, _ := s.Call(t, http.MethodGet, at, ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", at, answer.Status)
		}
	}
	unknown := fstest.MapFS{"a.unknown": {}}
	if _, err := (webpage.Guard{}).Handler(http.NewServeMux(), unknown); err == nil || !strings.Contains(err.Error(), "a.unknown: its content type is unknown") {
		t.Errorf("a file of an unknown type: %v", err)
	}
}

// TestGuard: other sites and hosts are refused, and all answers have the headers that
// restrict the page.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := page(t, fstest.MapFS{"index.html": {}})
	restrict := map[string]string{
		"Content-Security-Policy": "a policy", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	}
	const get, post = http.MethodGet, http.MethodPost
	for _, c := range []struct {
		method, at string
		headers    []string
		status     int
		want       string
	}{
		{get, "/", nil, 200, ""},
		{get, "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 200, ""}, // a link to the page
		{get, "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "iframe"}, 403, `"error":"a page of another site`},
		{get, "/icon.svg", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "image"}, 403, `"error":"a page of another site`},
		{get, "/", []string{"Host", "evil.example"}, 403, "not the host that the page listens on"},
		{get, "/nothing", nil, 404, ""},
		{get, "/api/nothing", nil, 404, "nothing has that path and method"},
		{get, "/api/change", nil, 404, "nothing has that path and method"},
		{post, "/api/change", nil, 200, ""},
		{post, "/api/change", []string{"Sec-Fetch-Site", "same-origin"}, 200, ""},
		{post, "/api/change", []string{"Origin", s.URL}, 200, ""},
		{post, "/api/change", []string{"Sec-Fetch-Site", "cross-site"}, 403, `"error":"a page of another site`},
		{post, "/api/change", []string{"Sec-Fetch-Site", "same-site"}, 403, `"error":"a page of another site`},
		{post, "/api/change", []string{"Origin", "http://evil.example"}, 403, `"error":"a page of another site`},
		{post, "/api/change", []string{"Origin", "null"}, 403, `"error":"a page of another site`},
		{post, "/api/change", []string{"Host", "evil.example"}, 403, "not the host that the page listens on"},
	} {
		answer, text := s.Call(t, c.method, c.at, "", c.headers...)
		if answer.StatusCode != c.status || !strings.Contains(text, c.want) || answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s %v: %s %v %s", c.method, c.at, c.headers, answer.Status, answer.Header, text)
		}
		for name, want := range restrict {
			if got := answer.Header.Get(name); got != want {
				t.Errorf("%s: %s: %q, want %q", c.at, name, got, want)
			}
		}
	}
	answer, _ := s.Call(t, get, "/bare", "")
	for name := range restrict {
		if got := answer.Header.Get(name); got != "" {
			t.Errorf("/bare: %s: %q", name, got)
		}
	}
}
