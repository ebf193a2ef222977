package playground

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
)

// fuzzed returns a Server that counts in memory until f ends.
func fuzzed(f *testing.F) *Server {
	f.Helper()
	s, err := New(Config{Limiter: replay.InMemory, Version: "v", Database: "memory", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.hub.Close(); _ = s.Close(context.Background()) }) // a fuzzing process may be killed before
	return s
}

// fuzzedBody has the fields of all bodies.
type fuzzedBody struct {
	Key      string
	Times    int64
	Requests []struct {
		Policy any
		Cost   *float64
	}
	Policies []any
	Costs    []float64
}

// checkAccepted checks that a body that a path accepted is within its bounds.
func checkAccepted(t *testing.T, path, body string) {
	t.Helper()
	var in fuzzedBody
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(&in)
	_, more := d.Token()
	wrong := err != nil || more != io.EOF || len(body) > 64<<10 || !utf8.ValidString(body) || in.Key == "" || len(in.Key) > 256 || strings.Contains(in.Key, "\x00")
	switch path {
	case "/api/send":
		wrong = wrong || in.Times < 1 || in.Times > 100 || len(in.Requests) < 1 || len(in.Requests) > 7
		for _, one := range in.Requests {
			wrong = wrong || one.Policy == nil || one.Cost != nil && *one.Cost <= 0
			policy, _ := one.Policy.(map[string]any)
			for field, only := range map[string]string{"name": "playground", "durability": "durable", "on_error": "fail_closed"} {
				if text, given := policy[field].(string); given && text != "" && text != only {
					wrong = true
				}
			}
		}
	case "/api/describe":
		wrong = wrong || len(in.Policies) < 1 || len(in.Policies) > 7 || len(in.Costs) > 0 && len(in.Costs) != len(in.Policies)
	}
	if wrong {
		t.Errorf("%s accepts %.300q: %v", path, body, err)
	}
}

// FuzzRequestBody: whatever the body is, each path answers it with JSON that is no
// internal error. What it accepts is within its bounds.
func FuzzRequestBody(f *testing.F) {
	s := fuzzed(f)
	bodies := []string{
		`{"key":"k","times":2,"requests":[{"policy":` + fourAMinute + `,"cost":1}]}`,
		`{"key":"k","policies":[` + fourAMinute + `],"costs":[1]}`, `{"key":"k"}`,
		`{"key":"\u0000","times":-1}`, `{"key":"k","times":1,"requests":[null]}`, `{"key":"k","policies":["",{},[],1]}`,
		``, `null`, `[]`, `{`, `{"key":1e999}`, strings.Repeat("[", 10_000), "\xff", `{"key":"k"}{"key":"l"}`,
		`{"key":"k","times":1,"requests":[{"policy":` + fourAMinute + `}]}`, `{"key":"` + strings.Repeat("k", 256) + `"}`, `{"key":"` + strings.Repeat("k", 257) + `"}`,
		`{"key":"k","times":1,"requests":[{"policy":{"name":"n","algorithm":"gcra","limit":1,"period":"1s"}}]}`, `{"key":"k","times":1,"requests":[{"policy":{"durability":"relaxed","algorithm":"gcra","limit":1,"period":"1s"}}]}`,
		"{\"key\":\"\xff\"}", `{"key":""}`, `{"key":"\u0000"}`, `{"key":"k","more":1}`, `{"key":"k"}` + strings.Repeat(" ", 64<<10),
		`{"key":"k","policies":[` + fourAMinute + `,` + fourAMinute + `],"costs":[1]}`, `{"key":"k","policies":[` + fourAMinute + `],"costs":[1,2]}`,
		`{"key":"k","policies":[]}`, `{"key":"k","policies":[1,2,3,4,5,6,7,8]}`, sendBody(0, 1, "1"), sendBody(101, 1, "1"), sendBody(1, 0, "1"), sendBody(1, 8, "1"), sendBody(1, 7, "1"), sendBody(1, 1, "0"), sendBody(1, 1, "-1"),
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
		if w.Code == http.StatusOK && path != paths[3] {
			checkAccepted(t, path, body)
		}
	})
}

// sendBody returns a body for /api/send with that many requests.
func sendBody(times, requests int, cost string) string {
	one := `{"policy":` + fourAMinute + `,"cost":` + cost + `}`
	return fmt.Sprintf(`{"key":"k","times":%d,"requests":[%s]}`, times, strings.TrimSuffix(strings.Repeat(one+",", requests), ","))
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
