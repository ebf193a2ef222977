package frameworks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"

	"github.com/pglimit/pglimit/limiter"
)

// shop creates an order once for each idempotency key.
type shop struct {
	mu     sync.Mutex
	orders map[string]string
}

func (s *shop) create(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orders[key] == "" {
		s.orders[key] = fmt.Sprint("order ", len(s.orders)+1)
	}
	return s.orders[key]
}

// counting counts the connections that a listener accepts.
type counting struct {
	net.Listener
	n atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

type middleware = func(http.Handler) http.Handler

// each runs a test behind each framework, over a limiter in memory whose clock is
// now, in seconds.
func each(t *testing.T, test func(t *testing.T, url string, s *shop, now *atomic.Int64, connections *atomic.Int64)) {
	gin.SetMode(gin.TestMode)
	for name, handler := range map[string]func(middleware, func(string) string) http.Handler{"chi": Chi, "gin": Gin, "echo": Echo, "fiber": nil} {
		t.Run(name, func(t *testing.T) {
			s, now := &shop{orders: map[string]string{}}, new(atomic.Int64)
			limit := Limit(limiter.NewMemory(&limiter.Config{Now: func() time.Time { return time.Unix(now.Load(), 0) }}))
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			accepted := &counting{Listener: listener}
			if handler == nil {
				app, ended := Fiber(limit, s.create), make(chan error)
				go func() { ended <- app.Listener(accepted, fiber.ListenConfig{DisableStartupMessage: true}) }()
				t.Cleanup(func() {
					if err := app.ShutdownWithTimeout(time.Minute); err != nil {
						t.Error(err)
					}
					if err := <-ended; err != nil {
						t.Error(err)
					}
				})
			} else {
				server := httptest.NewUnstartedServer(handler(limit, s.create))
				server.Listener.Close()
				server.Listener = accepted
				server.Start()
				t.Cleanup(server.Close)
			}
			test(t, "http://"+listener.Addr().String()+"/orders", s, now, &accepted.n)
		})
	}
}

// TestLimit: each client gets as many orders as its burst, and then 429 with the fields that say
// when to come again. Clients on one connection do not mix.
func TestLimit(t *testing.T) {
	each(t, func(t *testing.T, url string, s *shop, now, _ *atomic.Int64) {
		client := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(client.CloseIdleConnections)
		post := func(key string) (*http.Response, string) {
			r, err := http.NewRequestWithContext(t.Context(), "POST", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Api-Key", key)
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res, string(body)
		}
		for i := range 5 {
			for _, key := range []string{"alice", "bobby", "carol", "david"} { // as long as each other
				res, body := post(key)
				got := fmt.Sprint(res.StatusCode, " ", res.Header["Retry-After"], " ", res.Header["Ratelimit"])
				want := fmt.Sprintf(`200 [] ["client";r=%d;t=%d]`, 2-i, i+1)
				if i >= 3 {
					want = `429 [1] ["client";r=0;t=1]`
				}
				if got != want || strings.Contains(body, "order") != (i < 3) || strings.Contains(body, "quota-exceeded") != (i >= 3) {
					t.Errorf("%s, request %d: %s %s, want %s", key, i, got, body, want)
				}
			}
		}
		now.Add(1)
		if res, _ := post("alice"); res.StatusCode != 200 {
			t.Errorf("when the server said, alice got %s", res.Status)
		}
		if res, _ := post(""); res.StatusCode != 403 {
			t.Errorf("without a key: %s", res.Status)
		}
	})
}

// TestClient: the client waits as long as Retry-After says, over one connection. An order under
// the key of an earlier one is that order and counts once.
func TestClient(t *testing.T) {
	each(t, func(t *testing.T, url string, s *shop, now, connections *atomic.Int64) {
		var waited time.Duration
		client := Client{wait: func(_ context.Context, d time.Duration) error {
			waited += d
			now.Add(int64(d / time.Second))
			return nil
		}}
		client.HTTP.Transport = &http.Transport{}
		t.Cleanup(client.HTTP.CloseIdleConnections)
		for i, want := range []struct {
			key, order string
			waited     time.Duration
		}{
			{"first", "order 1", 0}, {"second", "order 2", 0}, {"first", "order 1", 0}, {"third", "order 3", 0},
			{"fourth", "order 4", time.Second}, {"first", "order 1", time.Second}, {"fifth", "order 5", 2 * time.Second},
		} {
			if got, err := client.Create(t.Context(), url, "alice", want.key); got != want.order || err != nil || waited != want.waited {
				t.Errorf("order %d: %s, %v after %v, want %+v", i, got, err, waited, want)
			}
		}
		if len(s.orders) != 5 || connections.Load() != 1 {
			t.Errorf("%d orders over %d connections, want 5 over 1", len(s.orders), connections.Load())
		}
	})
}

// TestClientRetries: a lost answer is asked for again, under the same key. What cannot help is not
// repeated, and what goes on failing ends.
func TestClientRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []string // a status and a Retry-After, or lost; the last is repeated
		sent    int
		waited  time.Duration
		err     string
	}{
		{"lost", []string{"lost", "200"}, 2, time.Second, ""},
		{"denied", []string{"429 7", "200"}, 2, 7 * time.Second, ""},
		{"unavailable", []string{"503", "200"}, 2, time.Second, ""},
		{"too large", []string{"413"}, 1, 0, "413"},
		{"denied for good", []string{"429"}, 1, 0, "429"},
		{"goes on", []string{"429 2"}, tries, (tries - 1) * 2 * time.Second, "429"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, sent := &shop{orders: map[string]string{}}, 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, after, _ := strings.Cut(c.answers[min(sent, len(c.answers)-1)], " ")
				sent++
				order := s.create(r.Header.Get("Idempotency-Key"))
				if answer == "lost" {
					panic(http.ErrAbortHandler)
				}
				if after != "" {
					w.Header().Set("Retry-After", after)
				}
				status := 0
				fmt.Sscan(answer, &status)
				w.WriteHeader(status)
				fmt.Fprint(w, order)
			}))
			defer server.Close()
			var waited time.Duration
			client := Client{wait: func(_ context.Context, d time.Duration) error { waited += d; return nil }}
			got, err := client.Create(t.Context(), server.URL, "alice", "k")
			if c.err == "" && (got != "order 1" || err != nil) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || sent != c.sent || waited != c.waited {
				t.Errorf("%s, %v after %d requests and %v, want %+v", got, err, sent, waited, c)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := new(Client).Create(ctx, "http://127.0.0.1:1", "alice", "k"); err == nil {
		t.Error("a cancelled context did not end the client")
	}
}

// TestFiberKeys: the strings of a request stay as they are when the connection's next requests
// have been served, so that a limiter can keep them.
func TestFiberKeys(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var got, orders []string
	app, ended := Fiber(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = append(got, r.Header.Get("X-Api-Key"), r.URL.RawQuery, r.Host)
			next.ServeHTTP(w, r)
		})
	}, func(key string) string { orders = append(orders, key); return "order" }), make(chan error)
	go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	client := &http.Client{Transport: &http.Transport{}}
	var want, wantOrders []string
	for _, key := range []string{"alice", "bobby", "carol", "david"} { // as long as each other
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+listener.Addr().String()+"/orders?"+key, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host, r.Header = key, http.Header{"X-Api-Key": {key}, "Idempotency-Key": {key}}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil { // so that the connection is used again
			t.Error(err)
		}
		res.Body.Close()
		want, wantOrders = append(want, key, key, key), append(wantOrders, key)
	}
	client.CloseIdleConnections()
	if err := app.ShutdownWithTimeout(time.Minute); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, want) || !slices.Equal(orders, wantOrders) {
		t.Errorf("the keys became %q and %q, want %q and %q", got, orders, want, wantOrders)
	}
}
