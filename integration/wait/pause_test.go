package wait

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestWithPause: what a server answers to one of three processes stops the others: of thirty
// requests it refuses one, and a Wait is denied for as long as it said.
func TestWithPause(t *testing.T) {
	t.Parallel()
	var refused atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refused.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	calls := limiter.Policy{Name: "calls", Algorithm: limiter.LeakyBucketQueue, Limit: 1000, Period: time.Second, Burst: 1000}
	database := testworld.NewDatabase(t)
	var processes []*limiter.Limiter
	for range 3 {
		processes = append(processes, testworld.NewLimiter(t, testworld.Connect(t, database), nil))
	}
	limits := func(*http.Request) ([]limiter.Request, error) {
		return []limiter.Request{calls.Request("account", 1)}, nil
	}
	for i := range 30 {
		client := http.Client{Transport: httplimit.Transport(processes[i%3], limits, nil, httplimit.WithPause(24*time.Hour))}
		res, err := client.Get(server.URL)
		if i == 0 {
			must.Succeed(t, err)
			_ = res.Body.Close()
			continue
		}
		var denied *limiter.DeniedError
		if !errors.As(err, &denied) || denied.Result.RetryAfter <= 59*time.Minute || denied.Result.RetryAfter > time.Hour {
			t.Errorf("request %d: %v", i+1, err)
		}
	}
	if n := refused.Load(); n != 1 {
		t.Errorf("the server refused %d requests, want 1", n)
	}
	for _, l := range processes {
		var denied *limiter.DeniedError
		if err := l.Wait(t.Context(), calls, "account", 1); !errors.As(err, &denied) {
			t.Errorf("Wait: %v", err)
		}
	}
}
