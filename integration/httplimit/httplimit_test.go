package httplimit

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

// visit sends a request as a user and returns the answer with its body read.
func visit(t testing.TB, server *httptest.Server, path, user, password string) *http.Response {
	t.Helper()
	r, err := http.NewRequest("GET", server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth(user, password)
	res, err := server.Client().Do(r)
	if err != nil {
		t.Error(err)
		return &http.Response{}
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return res
}

// TestHTTPLimit: many clients of two servers share a database. Never more than the limit
// passes, denials consume nothing of any limit, and of logins only the failed ones stay
// counted.
func TestHTTPLimit(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	const period = 1000 * time.Hour
	user := limiter.Policy{Name: "user", Algorithm: limiter.TokenBucket, Limit: 20, Period: period}
	everybody := limiter.Policy{Name: "all", Algorithm: limiter.FixedWindow, Limit: 50, Period: period}
	login := limiter.Policy{Name: "login", Algorithm: limiter.SlidingWindowLog, Limit: 5, Period: period}
	name := func(r *http.Request) string { u, _, _ := r.BasicAuth(); return u }

	var passed sync.Map // by user
	work := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := passed.LoadOrStore(name(r), new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	})
	var wrong atomic.Int64
	check := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "right" {
			wrong.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	var servers []*httptest.Server
	var l *limiter.Limiter
	for range 2 {
		l = bed.NewLimiter(t, pool, nil)
		mux := http.NewServeMux()
		mux.Handle("/work", httplimit.New(l, func(r *http.Request) ([]limiter.Request, error) {
			return []limiter.Request{user.Request(name(r), 1), everybody.Request("all", 1)}, nil
		})(work))
		mux.Handle("/login", httplimit.New(l, httplimit.Each(httplimit.User(name), login),
			httplimit.WithRefundIf(func(status int) bool { return status != http.StatusUnauthorized }))(check))
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		servers = append(servers, server)
	}

	var clients sync.WaitGroup
	for i := range 24 {
		clients.Go(func() {
			for range 10 {
				res := visit(t, servers[i%2], "/work", fmt.Sprint("user ", i%4), "")
				if res.StatusCode != 200 && res.StatusCode != 429 || res.Header.Get("RateLimit") == "" {
					t.Errorf("got %s, %q", res.Status, res.Header)
				}
			}
		})
	}
	clients.Wait()
	total := 0.0
	for i := range 4 {
		key := fmt.Sprint("user ", i)
		n, _ := passed.LoadOrStore(key, new(atomic.Int64))
		count := float64(n.(*atomic.Int64).Load())
		if got := bed.Must(t)(l.Check(t.Context(), user, key, 0)).Level; count > 20 || !bed.Near(got, count) {
			t.Errorf("%s: %v requests passed, %v are counted", key, count, got)
		}
		total += count
	}
	if got := bed.Must(t)(l.Check(t.Context(), everybody, "all", 0)).Level; total != 50 || got != 50 {
		t.Errorf("%v requests passed and %v are counted, want 50", total, got)
	}

	// The right password costs nothing, the wrong one a try; at most five pass, though
	// many are sent at once.
	for range 8 {
		if res := visit(t, servers[0], "/login", "alice", "right"); res.StatusCode != 200 {
			t.Errorf("the right password: %s", res.Status)
		}
	}
	for range 16 {
		clients.Go(func() { visit(t, servers[1], "/login", "alice", "wrong") })
	}
	clients.Wait()
	if got := bed.Must(t)(l.Check(t.Context(), login, "alice", 0)).Level; got != 5 || wrong.Load() != 5 {
		t.Errorf("%v wrong passwords were looked at and %v are counted, want 5", wrong.Load(), got)
	}
	if res := visit(t, servers[0], "/login", "alice", "right"); res.StatusCode != 429 {
		t.Errorf("after five wrong ones: %s", res.Status)
	}
}

// TestHTTPLimitServerStopped: while the database is away a route fails closed with 503 or
// open, as its policy says. With the database back both count again.
func TestHTTPLimitServerStopped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own, err := pglimittest.StartOwn(ctx, log.Printf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	closed := limiter.Policy{Name: "closed", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	open := closed
	open.Name, open.OnError = "open", limiter.FailOpen
	quiet := slog.New(slog.DiscardHandler)
	serve := func() *httptest.Server {
		pool, err := pgxpool.New(ctx, own.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if err := migrations.Up(ctx, pool); err != nil {
			t.Fatal(err)
		}
		l := bed.NewLimiter(t, pool, &limiter.Config{Timeout: 30 * time.Second, Logger: quiet})
		mux := http.NewServeMux()
		ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		for path, p := range map[string]limiter.Policy{"/closed": closed, "/open": open} {
			mux.Handle(path, httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, p), httplimit.WithLogger(quiet))(ok))
		}
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server
	}
	expect := func(when string, server *httptest.Server, path string, status int, field string) {
		t.Helper()
		if res := visit(t, server, path, "", ""); res.StatusCode != status || res.Header.Get("RateLimit") != field {
			t.Errorf("%s, %s: got %s, %q", when, path, res.Status, res.Header)
		}
	}
	server := serve()
	expect("before", server, "/closed", 200, `"closed";r=9;t=360000`)
	expect("before", server, "/open", 200, `"open";r=9;t=360000`)
	if err := own.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	expect("gone", server, "/closed", 503, "")
	expect("gone", server, "/open", 200, "")
	if err := own.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	server = serve() // the port may be another
	for path, name := range map[string]string{"/closed": "closed", "/open": "open"} {
		res := visit(t, server, path, "", "")
		if res.StatusCode != 200 || res.Header.Get("RateLimit-Policy") != `"`+name+`";q=10;w=3600000` || !strings.HasPrefix(res.Header.Get("RateLimit"), `"`+name+`";r=8;`) {
			t.Errorf("back, %s: got %s, %q", path, res.Status, res.Header)
		}
	}
}
