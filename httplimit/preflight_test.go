package httplimit

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestPassPreflight checks that only CORS preflights pass without counting, and only with
// the option.
func TestPassPreflight(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	const origin, method = "Origin: https://app.example", "Access-Control-Request-Method: PUT"
	for _, c := range []struct {
		name, method string
		lines        []string
		passes       bool
	}{
		{"a preflight", "OPTIONS", []string{origin, method}, true},
		{"an opaque origin", "OPTIONS", []string{"Origin: null", method}, true},
		{"another method", "PUT", []string{origin, method}, false},
		{"no requested method", "OPTIONS", []string{origin}, false},
		{"no origin", "OPTIONS", []string{method}, false},
		{"empty fields", "OPTIONS", []string{"Origin: ", "Access-Control-Request-Method: "}, false},
		{"HEAD", "HEAD", nil, false},
	} {
		for _, opts := range [][]Option{nil, {WithPassPreflight()}} {
			l := limiter.NewMemory(nil)
			r := from("192.0.2.7:1", c.lines...)
			r.Method = c.method
			r.URL = request().URL
			next := &answering{status: 204}
			w := httptest.NewRecorder()
			New(l, fixed(p.Request("k", 1)), opts...)(next).ServeHTTP(w, r)
			counted := 1.0
			if c.passes && opts != nil {
				counted = 0
			}
			if got := level(t, l, p, "k"); got != counted || w.Code != 204 || next.calls.Load() != 1 || (w.Header()[limitField] == nil) != (counted == 0) {
				t.Errorf("%s, %d options: got %d, level %v, %q; want level %v", c.name, len(opts), w.Code, got, w.Header(), counted)
			}
		}
	}
	// A preflight has no credentials, so there may be no key.
	r := from("192.0.2.7:1", origin, method)
	r.Method = "OPTIONS"
	next := &answering{status: 204}
	if w := get(New(limiter.NewMemory(nil), failing(errors.New("no such user")), WithPassPreflight())(next), r); w.Code != 204 {
		t.Errorf("without a key: got %d", w.Code)
	}
}
