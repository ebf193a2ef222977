package httplimit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/pglimit/pglimit/limiter"
)

var three = limiter.Policy{Name: "three", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}

// TestAddressManyOfOneNetwork checks that all addresses of a /64 are one client.
func TestAddressManyOfOneNetwork(t *testing.T) {
	keys := map[string]bool{}
	l := limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) { keys[o.Request.Key] = true }})
	next := &answering{status: 200}
	h := New(l, Each(Address{}.Key, three))(next)
	for i := range 5000 {
		r := request()
		r.RemoteAddr = fmt.Sprintf("[2001:db8:1:2:%x:%x::%x]:%d", i%7, i, i*13%0xffff, 1024+i)
		get(h, r)
	}
	if len(keys) != 1 || !keys["2001:db8:1:2::/64"] || next.calls.Load() != 3 {
		t.Errorf("%d keys, %d requests passed", len(keys), next.calls.Load())
	}
	r := request()
	r.RemoteAddr = "[2001:db8:1:3::1]:1"
	if w := get(h, r); w.Code != 200 {
		t.Errorf("an address of the next /64: got %d, want 200", w.Code)
	}
}

// TestAddressForgedHeaders checks over TCP that forged headers do not change the key.
func TestAddressForgedHeaders(t *testing.T) {
	key := make(chan string, 1)
	l := limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) { key <- o.Request.Key }})
	for _, a := range []Address{
		{}, {Hops: 1}, {Hops: 1, Header: "Forwarded"}, {Proxies: prefixes("127.0.0.0/8")}, {Proxies: prefixes("127.0.0.0/8"), Header: "Forwarded"},
	} {
		server := httptest.NewServer(New(l, Each(a.Key, three))(&answering{status: 200}))
		want := "192.0.2.7"
		if a.Header == "" && a.Hops == 0 && a.Proxies == nil {
			want = "127.0.0.1"
		}
		for _, forged := range []string{
			"", "X-Forwarded-For: 198.51.100.1\r\nForwarded: for=198.51.100.1\r\n",
			"X-Forwarded-For: 198.51.100.1\r\nx-forwarded-for:\r\nX-FORWARDED-FOR: ,,,\r\nforwarded: for=\"198.51.100.1\r\nForwarded: ,;,\r\n",
			"X-Forwarded-For: " + strings.Repeat("198.51.100.1,", 50_000) + "\r\nForwarded: " + strings.Repeat(`for="198.51.100.1,`, 19_999) + "\r\n",
			"X-Forwarded-For: \xff\xfe\x80\r\nForwarded: for=\"\xff\\\r\n",
		} {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			// The proxy adds separate lines.
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sX-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7;host=\"a,b\"\r\n\r\n", forged)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%+v, %.80q: %v", a, forged, err)
			}
			if res.StatusCode != 200 && res.StatusCode != 429 {
				t.Fatalf("%+v, %.80q: %s", a, forged, res.Status)
			}
			if got := <-key; got != want {
				t.Errorf("%+v, %.80q: counted for %q, want %q", a, forged, got, want)
			}
			conn.Close()
		}
		server.Close()
	}
}

// TestKeyHugeHeaders checks that keys of huge headers are short and differ.
func TestKeyHugeHeaders(t *testing.T) {
	key := make(chan string, 1)
	l := limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) { key <- o.Request.Key }})
	server := httptest.NewUnstartedServer(New(l, Each(Join(Header("X-Api-Key"), User(func(r *http.Request) string { return r.Header.Get("User") })), three))(&answering{status: 200}))
	server.Config.MaxHeaderBytes = 4 << 20
	server.Start()
	defer server.Close()
	seen := map[string]bool{}
	for _, value := range []string{strings.Repeat("k", 1<<20), strings.Repeat("k", 1<<20) + "l", "\x80\xff", "\x80\xfe", strings.Repeat(":", 256), "ok"} {
		for _, user := range []string{strings.Repeat("u", 1<<20), "\xff", strings.Repeat(`\`, 256)} {
			r, err := http.NewRequest("GET", server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header = http.Header{"X-Api-Key": {value}, "User": {user}}
			res, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 200 {
				t.Errorf("%.20q, %.20q: %s", value, user, res.Status)
			}
			k := <-key
			if len(k) > 1024 || seen[k] {
				t.Errorf("%.20q, %.20q: key %q of %d bytes, seen: %v", value, user, k, len(k), seen[k])
			}
			seen[k] = true
		}
	}
}

// TestNewHTTP2 checks that the fields arrive, that streams of one connection are limited
// together, and that a reset stream gives back its place in the queue.
func TestNewHTTP2(t *testing.T) {
	ended := make(chan struct{})
	var leave context.CancelFunc
	l := limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) {
		if o.Request.Policy == slow && o.Result.Delay > 0 {
			leave()
		}
	}})
	queue := New(l, fixed(slow.Request("k", 1)))(&answering{status: 200})
	mux := http.NewServeMux()
	mux.Handle("/three", New(l, Each(Address{}.Key, three), WithXRateLimit())(&answering{status: 200}))
	mux.HandleFunc("/queue", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Then") == "leave" {
			defer close(ended)
		}
		queue.ServeHTTP(w, r)
	})
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leave = cancel
	send := func(ctx context.Context, path, then string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, "GET", server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Then", then)
		res, err := server.Client().Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		return res, err
	}
	for i := range 4 {
		res, err := send(t.Context(), "/three", "stay")
		if err != nil {
			t.Fatal(err)
		}
		want := 200
		if i == 3 {
			want = 429
		}
		for _, field := range []string{"RateLimit-Policy", "RateLimit"} {
			if _, err := httpsfv.UnmarshalList(res.Header.Values(field)); err != nil || res.Header.Get(field) == "" {
				t.Errorf("%s: %q, %v", field, res.Header.Values(field), err)
			}
		}
		if res.StatusCode != want || res.ProtoMajor != 2 || (res.Header.Get("Retry-After") != "") != (want == 429) || res.Header.Get("X-RateLimit-Limit") != "3" {
			t.Errorf("request %d: got %s %s, %q", i, res.Proto, res.Status, res.Header)
		}
	}
	if _, err := send(ctx, "/queue", "stay"); err != nil {
		t.Fatal(err)
	}
	if res, err := send(ctx, "/queue", "leave"); err == nil {
		t.Errorf("cancelled request: got %s, want an error", res.Status)
	}
	if <-ended; level(t, l, slow, "k") > 1 {
		t.Errorf("the place stays taken: level %v", level(t, l, slow, "k"))
	}
}
