package httplimit_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var atOnce = limiter.Policy{Name: "at-once", Algorithm: limiter.Concurrency, Limit: 1, Period: 30 * time.Second}

func slotOf(r *http.Request) (limiter.Request, error) {
	key := r.Header.Get("Client")
	if key == "" {
		return limiter.Request{}, httplimit.ErrNoKey
	}
	return atOnce.Request(key, 1), nil
}

// TestSlots: a client has one request at a time, for as long as it streams; then, and after a panic
// or a client that goes away, the next passes. Others are not concerned.
func TestSlots(t *testing.T) {
	t.Parallel()
	l := limiter.NewMemory(nil)
	more := make(chan bool)
	server := httptest.NewServer(httplimit.NewSlots(l, slotOf)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/stream":
			w.(http.Flusher).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
			}
		}
	})))
	t.Cleanup(server.Close)
	get := func(ctx context.Context, path, client string) *http.Response {
		t.Helper()
		r := must.OK(http.NewRequestWithContext(ctx, "GET", server.URL+path, nil))(t)
		r.Header.Set("Client", client)
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = got.Body.Close() })
		return got
	}
	ctx := t.Context()
	stream := get(ctx, "/stream", "a")
	denied := get(ctx, "/", "a")
	if denied.StatusCode != 429 || denied.Header.Get("Retry-After") != "30" || !strings.Contains(denied.Header.Get("RateLimit-Policy"), `"at-once";q=1`) || strings.Contains(denied.Header.Get("RateLimit-Policy"), "w=") {
		t.Errorf("a second request: %d %v", denied.StatusCode, denied.Header)
	}
	if other := get(ctx, "/", "b"); other.StatusCode != 200 || other.Header.Get("RateLimit") != "" {
		t.Errorf("another client: %d %v", other.StatusCode, other.Header)
	}
	if none := get(ctx, "/", ""); none.StatusCode != 403 {
		t.Errorf("without a key: %d", none.StatusCode)
	}
	more <- true
	must.OK(io.ReadAll(stream.Body))(t)
	await := func(what string) {
		t.Helper()
		for { // the handler ends after its client has seen the end
			if r := get(ctx, "/", "a"); r.StatusCode == 200 {
				return
			} else if r.StatusCode != 429 {
				t.Fatalf("after %s: %d", what, r.StatusCode)
			}
		}
	}
	await("a stream")
	get(ctx, "/panic", "a")
	await("a panic")
	gone, leave := context.WithCancel(ctx)
	get(gone, "/stream", "a")
	leave()
	await("a client that went away")
}

// TestSlotLost: if the slot is taken away, the request's context ends, and that is logged.
func TestSlotLost(t *testing.T) {
	t.Parallel()
	l := limiter.NewMemory(nil)
	short := atOnce
	short.Period = time.Second
	var log strings.Builder
	h := httplimit.NewSlots(l, func(*http.Request) (limiter.Request, error) { return short.Request("k", 1), nil }, httplimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	h(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		must.Succeed(t, l.Reset(context.Background(), short, "k"))
		<-r.Context().Done()
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	if !strings.Contains(log.String(), "a slot was lost") {
		t.Errorf("logged %q", log.String())
	}
}
