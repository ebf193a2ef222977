package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// TestAttempt: a failure counts and a success clears the count, each ticket once. A denial is an
// answer with Retry-After. The place from which an attempt succeeded is counted separately, and
// a ticket lasts for its ttl.
func TestAttempt(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	type ticket struct {
		ID        *string
		ExpiresAt *time.Time `json:"expires_at"`
		Result    struct {
			Allowed bool
			At      time.Time
			Level   float64
			Reason  string
		}
	}
	attempt := func(from string) (ticket, http.Header) {
		t.Helper()
		var got ticket
		r, body := call(t, h, "POST", "/v1/attempt", fmt.Sprintf(`{"policy":"code","key":"a","from":%q,"ttl":"1h"}`, from))
		if must.Succeed(t, json.Unmarshal([]byte(body), &got)); r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, body)
		}
		if got.Result.Allowed && got.ExpiresAt.Sub(got.Result.At) != time.Hour {
			t.Errorf("a ticket for an hour: %s", body)
		}
		return got, r.Header
	}
	report := func(route string, id *string, status int, want string) {
		t.Helper()
		if r, body := call(t, h, "POST", route, fmt.Sprintf(`{"id":%q}`, *id)); r.StatusCode != status || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %d and %s", route, r.StatusCode, body, status, want)
		}
	}
	home, _ := attempt("192.0.2.0/24")
	report("/v1/succeeded", home.ID, 204, "")
	report("/v1/succeeded", home.ID, 404, `"no_ticket"`)
	for i := range 2 {
		guess, _ := attempt("198.51.100.0/24")
		report("/v1/failed", guess.ID, 200, fmt.Sprintf(`"level":%d,`, i+1))
		report("/v1/failed", guess.ID, 404, `"no_ticket"`)
	}
	if denied, header := attempt("198.51.100.0/24"); denied.Result.Allowed || denied.ID != nil || denied.ExpiresAt != nil || denied.Result.Reason != "blocked" || header.Get("Retry-After") != "3600" {
		t.Errorf("a third attempt: %+v %v", denied, header)
	}
	known, header := attempt("192.0.2.0/24")
	if !known.Result.Allowed || header.Get("Retry-After") != "" {
		t.Errorf("from a known place: %+v %v", known, header)
	}
	report("/v1/succeeded", known.ID, 204, "")
	if r, body := call(t, h, "GET", "/v1/usage?policy=code&key=a", ""); !strings.Contains(body, `"level":2,`) {
		t.Errorf("usage: %d %s", r.StatusCode, body)
	}
}
