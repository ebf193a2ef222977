package ratelimit

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/limiter"
)

// TestJSON checks the answers to requests in JSON.
func TestJSON(t *testing.T) {
	t.Parallel()
	s := server(t, twoLimits, Options{})
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`, 200, `"limitRemaining":2`},
		{`{"domain": "d", "hitsAddend": 9, "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`, 429, `"OVER_LIMIT"`},
		{`{"domain": "d"}`, 400, "descriptor list must not be empty"},
		{`{"domains": "d"}`, 400, `unknown field "domains"`},
		{`{"domain": "d", "descriptors": [null]}`, 400, ""},
		{`[`, 400, ""},
		{strings.Repeat(" ", maxBody+1), 400, "too large"},
	} {
		w := httptest.NewRecorder()
		s.JSON().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(c.body)))
		if body := strings.ReplaceAll(w.Body.String(), " ", ""); w.Code != c.status || !strings.Contains(body, strings.ReplaceAll(c.want, " ", "")) {
			t.Errorf("%.80s: status %d, body %s; want %d, %s", c.body, w.Code, w.Body, c.status, c.want)
		}
	}
	foreign := httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`))
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	if s.JSON().ServeHTTP(w, foreign); w.Code != http.StatusForbidden {
		t.Errorf("for a page of another site: status %d, %s", w.Code, w.Body)
	}
	s.limiter = failing{s.limiter, fmt.Errorf("%w: host=db.internal", limiter.ErrUnavailable)}
	w = httptest.NewRecorder()
	s.JSON().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`)))
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "internal") {
		t.Errorf("without a database: status %d, %s", w.Code, w.Body)
	}
}

// TestHealth checks both kinds of health checks.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := NewServer(nil, nil, Options{NeedConfig: true})
	check := func(when string, status int, serving grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		w := httptest.NewRecorder()
		s.Healthcheck().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthcheck", nil))
		r, err := s.Health().Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "ratelimit"})
		if w.Code != status || err != nil || r.GetStatus() != serving {
			t.Errorf("%s: status %d, gRPC %v, error %v; want %d, %v", when, w.Code, r.GetStatus(), err, status, serving)
		}
	}
	check("without a configuration", 500, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s.SetConfig(mustConfig(t, twoLimits), nil)
	check("without a limiter", 500, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if _, err := s.ShouldRateLimit(t.Context(), requestOf(t, "user=a")); status.Code(err) != codes.Unavailable {
		t.Error("without a limiter:", err)
	}
	s.SetLimiter(limiter.NewMemory(nil))
	check("with both", 200, grpc_health_v1.HealthCheckResponse_SERVING)
	s.SetConfig(&Config{}, nil)
	check("with an empty one", 500, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s.SetConfig(mustConfig(t, twoLimits), nil)
	s.Drain()
	check("at the end", 500, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}
