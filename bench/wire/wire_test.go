package wire

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// TestHTTP reads grants, denials, errors and answers that are neither.
func TestHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/allow" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s, error %v", r.Method, r.URL, err)
		}
		switch string(body) {
		case `{"policy":"login","key":"a"}`:
			fmt.Fprint(w, `{"policy":"login","allowed":true}`)
		case `{"policy":"login","key":"b"}`:
			fmt.Fprint(w, `{"policy":"login","allowed":false}`)
		case `{"policy":"login","key":"c"}`:
			fmt.Fprint(w, `{}`)
		default:
			http.Error(w, "unavailable", http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	c := must.OK(DialHTTP(s.Listener.Addr().String(), "login"))(t)
	defer c.Close()
	answers(t, c, "no decision", "503 Service Unavailable: unavailable")
}

// TestGRPC reads the same of Envoy's service.
func TestGRPC(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" {
			t.Errorf("%s, error %v", r.URL, err)
		}
		w.Header().Set("Trailer", "Grpc-Status")
		const request = "\x00\x00\x00\x00\x10" + "\x0a\x01d" + "\x12\x0b" + "\x0a\x09" + "\x0a\x04user" + "\x12\x01"
		switch key, found := strings.CutPrefix(string(body), request); {
		case !found:
			t.Errorf("%q", body)
		case key == "a":
			fmt.Fprint(w, "\x00\x00\x00\x00\x02\x08\x01")
		case key == "b":
			fmt.Fprint(w, "\x00\x00\x00\x00\x02\x08\x02")
		case key == "c":
			fmt.Fprint(w, "\x00\x00\x00\x00\x00")
		case key == "d":
			panic(http.ErrAbortHandler) // the stream is reset
		}
		w.Header().Set("Grpc-Status", "0")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	c := must.OK(DialGRPC(s.Listener.Addr().String(), "d", "user"))(t)
	defer c.Close()
	answers(t, c, "an error instead of a decision", "the server ended the request")
}

// answers asks for a and b, which are granted and denied, and for c and d, which fail.
func answers(t *testing.T, c Conn, failures ...string) {
	t.Helper()
	for range 3 {
		for key, want := range map[string]bool{"a": true, "b": false} {
			if got, err := c.Allow(key); err != nil || got != want {
				t.Errorf("%s: %t, error %v", key, got, err)
			}
		}
	}
	for i, want := range failures {
		if got, err := c.Allow(string(rune('c' + i))); err == nil || got || !strings.Contains(err.Error(), want) {
			t.Errorf("failure %d: %t, error %v, want %q", i, got, err, want)
		}
	}
}
