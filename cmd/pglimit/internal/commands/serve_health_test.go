package commands_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
)

// TestServeHealth: the first server that answers decides. A certificate of this machine is not
// verified, that of another is. If no server answers, none is ready.
func TestServeHealth(t *testing.T) {
	t.Parallel()
	answers := func(status int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	ready, starting, secure := httptest.NewServer(answers(200)), httptest.NewServer(answers(503)), httptest.NewTLSServer(answers(200))
	moved := httptest.NewServer(http.RedirectHandler(ready.URL, http.StatusFound))
	away := httptest.NewServer(nil)
	away.Close()
	for _, s := range []*httptest.Server{ready, starting, secure, moved} {
		t.Cleanup(s.Close)
	}
	elsewhere := strings.Replace(secure.URL, "127.0.0.1", "0.0.0.0", 1) // which dials this machine, and does not name it
	for name, test := range map[string]struct {
		urls   []string
		code   int
		answer string
	}{
		"ready":            {[]string{ready.URL}, 0, "ready: " + ready.URL},
		"TLS":              {[]string{secure.URL}, 0, "ready: " + secure.URL},
		"another machine":  {[]string{elsewhere}, 1, "not ready: " + elsewhere + ": tls: failed to verify certificate"},
		"starting":         {[]string{starting.URL, ready.URL}, 1, "not ready: " + starting.URL + ": 503 Service Unavailable"},
		"the second":       {[]string{away.URL, ready.URL}, 0, "ready: " + ready.URL},
		"no answer":        {[]string{away.URL}, 1, "not ready: " + away.URL + ": dial tcp"},
		"another server's": {[]string{moved.URL}, 1, "not ready: " + moved.URL + ": 302 Found"},
		"JSON":             {[]string{starting.URL, "--json"}, 1, `"status": 503`},
		"no URL":           {[]string{"localhost:9090"}, 2, `"localhost:9090" is no URL of a server`},
		"no time":          {[]string{ready.URL, "--timeout", "0s"}, 2, "--timeout is 0s: must be more than 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			code := commands.Run(context.Background(), append([]string{"serve", "health"}, test.urls...), strings.NewReader(""), &stdout, &stderr)
			if text := stdout.String() + stderr.String(); code != test.code || !strings.Contains(text, test.answer) {
				t.Errorf("exit code %d, want %d: %s", code, test.code, text)
			}
		})
	}
}
