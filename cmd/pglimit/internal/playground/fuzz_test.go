package playground

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/must"
)

// fuzzed returns a Server that counts in memory until f ends.
func fuzzed(f *testing.F) *Server {
	f.Helper()
	s := must.OK(New(Config{Limiter: replay.InMemory, Version: "v", Database: "memory", Logger: slog.New(slog.DiscardHandler)}))(f)
	f.Cleanup(func() { s.hub.Close(); _ = s.Close(context.Background()) }) // a fuzzing process may be killed before
	return s
}

// FuzzRequestBody: whatever the body is, each path answers it with JSON that is no
// internal error.
func FuzzRequestBody(f *testing.F) {
	s := fuzzed(f)
	bodies := []string{
		`{"key":"k","times":2,"requests":[{"policy":` + fourAMinute + `,"cost":1}]}`,
		`{"key":"k","policies":[` + fourAMinute + `],"costs":[1]}`, `{"key":"k"}`,
		`{"key":"\u0000","times":-1}`, `{"key":"k","times":1,"requests":[null]}`, `{"key":"k","policies":["",{},[],1]}`,
		``, `null`, `[]`, `{`, `{"key":1e999}`, strings.Repeat("[", 10_000), "\xff", `{"key":"k"}{"key":"l"}`,
		accessLog(), "\x1f\x8b", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
	}
	paths := []string{"/api/send", "/api/describe", "/api/reset", replayPath(fourAMinute)}
	for i := range paths {
		for _, body := range bodies {
			f.Add(byte(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, body string) {
		path := paths[int(which)%len(paths)]
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s %.200q: %d %s", path, body, w.Code, w.Body)
		}
	})
}
