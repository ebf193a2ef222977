package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

func TestMain(m *testing.M) { testdb.Main(m, migrate) }

// noon is far from the end of a day, a month and an hour.
var noon = time.Date(2026, time.March, 15, 12, 0, 0, 0, time.UTC)

// TestShop sends the requests of a new day to the application.
func TestShop(t *testing.T) {
	paid := 0
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { paid++ }))
	defer provider.Close()
	s, err := open(t.Context(), testdb.Empty.New(t), provider.URL, limiter.Config{
		Timeout: time.Minute, Now: func() time.Time { return noon },
	})
	t.Cleanup(s.close) // after what the test defers
	if err != nil {
		t.Fatal(err)
	}
	h := s.handler()
	send := func(method, path, name, password string) (int, string) {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("X-Api-Key", name)
		r.SetBasicAuth(name, password)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		body, _ := io.ReadAll(w.Body)
		return w.Code, w.Header().Get("Retry-After") + " " + strings.TrimSpace(string(body))
	}
	for _, step := range []struct {
		path, name, password string
		times, status        int
		text                 string
	}{
		{"/login", "alice", "wonderland", 10, 200, "welcome"}, // costs nothing
		{"/login", "alice", "guess", 5, 401, "wrong"},
		{"/login", "alice", "wonderland", 3, 429, `"login"`},
		{"/login", "bob", "builder", 1, 200, "welcome"},
		{"/login", strings.Repeat("b", 1500), "guess", 5, 401, "wrong"},
		{"/login", strings.Repeat("b", 1500), "guess", 1, 429, `"login"`},
		{"/login", "b\x00b", "guess", 1, 401, "wrong"},

		{"/orders?number=1&cents=60000", "bob", "", 1, 200, "ordered"},
		{"/orders?number=1&cents=60000", "bob", "", 1, 200, "ordered"}, // sent again, counted once
		{"/orders?number=2&cents=50000", "bob", "", 1, 429, `"budget"`},
		{"/orders?number=3&cents=40000", "bob", "", 1, 200, "ordered"},
		{"/orders?number=1&cents=1", "bob", "", 1, 409, "another order"},
		{"/orders?number=4&cents=none", "bob", "", 1, 400, "cents"},
		{"/orders?number=4&cents=9007199254740993", "bob", "", 1, 400, "cents"},
		{"/orders?number=4%00&cents=1", "bob", "", 1, 400, "number"},

		{"/answers?prompt=hello", "bob", "", 8, 200, "55 tokens used"},
		{"/answers?prompt=hello", "bob", "", 1, 429, `"tokens"`}, // 60 are left, 105 may be used
		{"/answers?prompt=hi", "alice", "", 8, 200, "52 tokens used"},
		{"/answers?prompt=hi", "alice", "", 2, 429, `"tokens"`},
		{"/answers?prompt=hi", "alice", "", 1, 429, `"free"`}, // the plan's burst of ten
		{"/answers", "eve", "", 1, 401, "unknown"},
	} {
		for range step.times {
			if status, text := send("POST", step.path, step.name, step.password); status != step.status || !strings.Contains(text, step.text) {
				t.Errorf("%s by %s: got %d %q, want %d with %q", step.path, step.name, status, text, step.status, step.text)
			}
		}
	}
	if err := s.denials.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	var ordered int
	if err := s.pool.QueryRow(t.Context(), `SELECT sum(cents) FROM orders`).Scan(&ordered); err != nil || ordered != 1000_00 || paid != 3 {
		t.Errorf("%d cents were ordered, %v, and %d payments sent; want the whole budget and 3", ordered, err, paid)
	}

	// An operator doubles a plan: the stored policy replaces the program's.
	free, err := s.policies.Get("free")
	if err != nil {
		t.Fatal(err)
	}
	free.Limit, free.Burst = 120, 20
	if _, err := s.policies.Apply(t.Context(), policies.Edit{Set: []policies.Stored{{Policy: free}}}); err != nil {
		t.Fatal(err)
	}
	if status, text := send("POST", "/answers?prompt=hi", "alice", ""); !strings.Contains(text, `"tokens"`) {
		t.Errorf("after the plan was doubled: %d %s", status, text)
	}
	_, metrics := send("GET", "/metrics", "", "")
	for _, line := range []string{`outcome="denied",policy="budget"`, `pglimit_open_reservations 0`, `pglimit_database_up 1`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics do not have %s:\n%s", line, metrics)
		}
	}

	// The limiter does not wait for connections of the application.
	for range s.pool.Config().MaxConns {
		c, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
	}
	if status, text := send("POST", "/login", "bob", "builder"); status != 200 {
		t.Errorf("while the application's pool is in use: %d %s", status, text)
	}

	// Without a decision the answer is not that of a denial, and has no text of the error.
	_ = s.limits.Close()
	_, err = s.complete(t.Context(), "bob", "hello")
	w := httptest.NewRecorder()
	if s.reply(w, "", err); w.Code != 503 || strings.Contains(w.Body.String(), "pglimit") {
		t.Errorf("%v is answered with %d %s", err, w.Code, w.Body)
	}
}

// TestServeEndsItsRequests: after a signal a request that runs is answered, and serve ends after
// that.
func TestServeEndsItsRequests(t *testing.T) {
	arrived, pay := make(chan struct{}), make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(arrived); <-pay }))
	defer provider.Close()
	s, err := open(t.Context(), testdb.Empty.New(t), provider.URL, limiter.Config{Timeout: time.Minute})
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), signals...)
	defer stop()
	ended, answered := make(chan error, 1), make(chan error, 1)
	go func() { ended <- s.serve(ctx, listener) }()
	go func() {
		r, _ := http.NewRequest("POST", "http://"+listener.Addr().String()+"/orders?number=1&cents=1", nil)
		r.Header.Set("X-Api-Key", "bob")
		response, err := http.DefaultClient.Do(r)
		if err == nil && response.StatusCode != http.StatusOK {
			err = errors.New(response.Status)
		}
		answered <- err
	}()
	<-arrived
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	<-ctx.Done()
	select {
	case err := <-ended:
		t.Error("it ended before its request:", err)
		ended <- err
	case <-time.After(300 * time.Millisecond): // that nothing comes is no event
	}
	close(pay)
	if err := errors.Join(<-answered, <-ended); err != nil {
		t.Error(err)
	}
}
