package playground

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/playground/sitetest"
)

// fuzzed returns a Server that counts in memory until f ends.
func fuzzed(f *testing.F) *Server {
	f.Helper()
	s, err := New(Config{Limiter: sitetest.Memory, Version: "v", Database: "memory", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.hub.Close(); _ = s.Close(context.Background()) }) // a fuzzing process may be killed before
	return s
}

// FuzzRequestBody: whatever the body is, each path answers it with JSON that is no
// internal error.
func FuzzRequestBody(f *testing.F) {
	s := fuzzed(f)
	bodies := []string{
		`{"key":"k","times":2,"requests":[{"policy":` + sitetest.FourAMinute + `,"cost":1}]}`,
		`{"key":"k","policies":[` + sitetest.FourAMinute + `],"costs":[1]}`, `{"key":"k"}`,
		`{"key":"\u0000","times":-1}`, `{"key":"k","times":1,"requests":[null]}`, `{"key":"k","policies":["",{},[],1]}`,
		``, `null`, `[]`, `{`, `{"key":1e999}`, strings.Repeat("[", 10_000), "\xff", `{"key":"k"}{"key":"l"}`,
		sitetest.AccessLog(), "\x1f\x8b", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
	}
	paths := []string{"/api/send", "/api/describe", "/api/reset", sitetest.ReplayPath(sitetest.FourAMinute)}
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

// FuzzLimitedQuery: whatever the query is, /limited/ answers it without an internal error.
func FuzzLimitedQuery(f *testing.F) {
	s := fuzzed(f)
	for _, query := range []string{
		"limit=2&period=1m&key=alice", "limit=1&calendar=day&time_zone=Europe%2FVienna&key=k", "limit=NaN&period=1s&key=k", "limit=Inf&key=k",
		"limit=1&limit=2", "%zz", "", "key=%00", "key=%ff&limit=1&period=1s", "aligned=maybe&key=k", "cost=-1&limit=1&period=1s&key=k", ";", "policies=[]",
	} {
		for _, algorithm := range []string{"token_bucket", "fixed_window", "none"} {
			f.Add(algorithm, query)
		}
	}
	f.Fuzz(func(t *testing.T, algorithm, query string) {
		if algorithm == "" || algorithm == "leaky_bucket_queue" { // the first is another path, the second waits for its turn
			return
		}
		r := httptest.NewRequest(http.MethodGet, "/limited/"+url.PathEscape(algorithm), nil)
		r.URL.RawQuery = query
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Errorf("%q ?%q: %d %s", algorithm, query, w.Code, w.Body)
		}
	})
}
