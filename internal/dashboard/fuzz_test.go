package dashboard_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/dashboard/sample"
)

// FuzzBody: whatever the body is, each path answers it with JSON that is no internal
// error, and changes nothing without the token.
func FuzzBody(f *testing.F) {
	source := sample.New(true)
	s, err := dashboard.New(dashboard.Config{Source: source, Token: token, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	paths := []string{"/api/key", "/api/keys", "/api/history", "/api/block", "/api/unblock", "/api/reset"}
	for i := range paths {
		for _, body := range []string{
			`{"key":"alice","stored":true}`, `{"order":"recent","policy":"login","prefix":"1","limit":9}`, `{"policy":"login","limit":1}`,
			`{"key":"alice","policy":"login","algorithm":"token_bucket","for":"1h"}`, `{"key":"alice","policy":"login","algorithm":"token_bucket"}`,
			`{"key":"\u0000"}`, `{"key":"\ud800"}`, "{\"key\":\"\xff\"}", `{"key":null}`, `{"limit":1e999}`, `{"limit":-9223372036854775808}`, `{"for":"9999999h"}`,
			``, `null`, `[]`, `{`, strings.Repeat("[", 10_000), `{"key":"k"}{"key":"l"}`, `{"KEY":"k"}`, `{"key":"a","key":"b"}`,
		} {
			f.Add(byte(i), false, body)
			f.Add(byte(i), true, body)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, withToken bool, body string) {
		path := paths[int(which)%len(paths)]
		changes := func() int { return source.Calls("Block") + source.Calls("Unblock") + source.Calls("Reset") }
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
