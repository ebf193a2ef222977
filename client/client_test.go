package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestErrors: each problem of a server is the library's error, and what is no server of ours is
// ErrUnavailable. A context that ends is its own error.
func TestErrors(t *testing.T) {
	t.Parallel()
	var status int
	var body string
	var token string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("Authorization")
		if status == 0 { // never answers
			_, _ = io.Copy(io.Discard, r.Body) // then the end of the connection is noticed
			<-r.Context().Done()
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	l, err := New(server.URL, &Config{Token: "t", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		status int
		body   string
		want   error
		text   string
	}{
		{400, `{"code":"invalid","detail":"cost -1: must be positive"}`, limiter.ErrInvalid, "pglimit: invalid: cost -1: must be positive"},
		{400, `{"code":"unsupported","detail":"x"}`, limiter.ErrUnsupported, ""},
		{404, `{"code":"no_policy","detail":"no such policy: \"x\""}`, policies.ErrNoPolicy, `pglimit: no such policy: "x"`},
		{404, `{"code":"no_reservation","detail":"x"}`, limiter.ErrNoReservation, ""},
		{404, `{"code":"no_ticket","detail":"x"}`, limiter.ErrNoTicket, ""},
		{409, `{"code":"reservation_ended","detail":"x"}`, limiter.ErrReservationEnded, ""},
		{503, `{"code":"locked","detail":"x"}`, limiter.ErrLocked, ""},
		{503, `{"code":"overloaded","detail":"x"}`, limiter.ErrOverloaded, ""},
		{503, `{"code":"unavailable","detail":"x"}`, limiter.ErrUnavailable, ""},
		{503, `{"code":"closed","detail":"x"}`, limiter.ErrUnavailable, ""},
		{401, `{"code":"unauthorized","detail":"x"}`, limiter.ErrMisconfigured, ""},
		{403, `{"code":"scope","detail":"x"}`, limiter.ErrMisconfigured, ""},
		{502, `<html>`, limiter.ErrUnavailable, "status 502"},
		{200, `<html>`, limiter.ErrUnavailable, "cannot be read"},
		{200, `{"allowed":true`, limiter.ErrUnavailable, "cannot be read"},
	} {
		status, body = c.status, c.body
		r, err := l.Allow(t.Context(), Named("p"), "k")
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || r.Allowed || token != "Bearer t" {
			t.Errorf("%d %s: %+v, %v with token %q", c.status, c.body, r, err, token)
		}
	}
	status = 0
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := l.Allow(ctx, Named("p"), "k"); !errors.Is(err, context.Canceled) || errors.Is(err, limiter.ErrUnavailable) {
		t.Error("a cancelled context:", err)
	}
	l.timeout = time.Millisecond
	if _, err := l.Allow(t.Context(), Named("p"), "k"); !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("a server that does not answer:", err)
	}
	for _, url := range []string{"", "localhost:8080", "ftp://x", "http://", "http://x?y=z", "http://x\x00"} {
		if _, err := New(url, nil); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := New("http://x", &Config{Timeout: -1}); !errors.Is(err, limiter.ErrInvalid) {
		t.Error(err)
	}
}

// TestSeconds: durations keep their microseconds, and null is Never.
func TestSeconds(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, time.Microsecond, 12*time.Second + 345678*time.Microsecond, 100 * 365 * 24 * time.Hour} {
		s := d.Seconds()
		if got := seconds(&s); got.Round(time.Microsecond) != d {
			t.Errorf("%v: %v", d, got)
		}
	}
	huge := 1e12
	if seconds(nil) != limiter.Never || seconds(&huge) != limiter.Never {
		t.Error("null is not Never")
	}
}
