package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestWatch opens pages that do what watch reports.
func TestWatch(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(elsewhere.Close)
	for _, c := range []struct{ what, page, complaint string }{
		{"nothing", `<p>fine</p>`, ""},
		{"an exception", `<script>throw new Error("oops")</script>`, "oops"},
		{"a promise rejected", `<script>Promise.reject(new Error("later"))</script>`, "later"},
		{"an error in the console", `<script>console.error("I am", "lost")</script>`, "lost"},
		{"a file that is not there", `<script src="/none.js"></script>`, "404"},
		{"a style in an element", `<p style="color: red">red</p>`, "Content Security Policy"},
		{"a request to elsewhere", `<img src="` + elsewhere.URL + `/pixel.png">`, "elsewhere"},
	} {
		t.Run(c.what, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/" {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Security-Policy", "default-src 'unsafe-inline' data: *; style-src 'self'")
				fmt.Fprintf(w, "<!doctype html><link rel=icon href=data:,>%s<script>onload = () => document.title = 'loaded'</script>", c.page)
			}))
			t.Cleanup(server.Close)
			b := Open(t, chromium, server.URL)
			b.Wait("it is loaded", `document.title === "loaded"`)
			seen := strings.Join(b.watch.left(), "\n")
			t.Logf("seen: %q", seen)
			if !strings.Contains(seen, c.complaint) || c.complaint == "" && seen != "" {
				t.Errorf("%q is not what should be seen", seen)
			}
			b.Tolerate("") // all of it
		})
	}
}
