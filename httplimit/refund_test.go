package httplimit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// kept is a ResponseWriter like a server's, whose connection cannot be hijacked.
type kept struct{ *httptest.ResponseRecorder }

func (kept) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errors.New("kept") }
func (k kept) FlushError() error                          { k.Flush(); return nil }
func (k kept) ReadFrom(r io.Reader) (int64, error)        { return io.Copy(k.ResponseRecorder, r) }

// TestRefundIf checks that the status that the client gets decides, however the handler
// sets it.
func TestRefundIf(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	other := limiter.Policy{Name: "other", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour}
	l := limiter.NewMemory(nil)
	var log bytes.Buffer
	for _, c := range []struct {
		name   string
		status int
		panics any
		handle http.HandlerFunc
	}{
		{"nothing written", 200, nil, func(http.ResponseWriter, *http.Request) {}},
		{"written", 200, nil, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }},
		{"a status", 401, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }},
		{"a second status", 401, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401); w.WriteHeader(200) }},
		{"a status after the body", 200, nil, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); w.WriteHeader(401) }},
		{"1xx", 404, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(404) }},
		{"1xx alone", 200, nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103) }},
		{"a hijack that fails", 404, nil, func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := w.(http.Hijacker).Hijack(); err != nil {
				w.WriteHeader(404)
			}
		}},
		{"a panic after a flush", 200, "why", func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); panic("why") }},
		{"a panic after a controller's flush", 200, "why", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			panic("why")
		}},
		{"a panic after a copy", 200, "why", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("x"))
			panic("why")
		}},
		{"a panic", 500, "why", func(http.ResponseWriter, *http.Request) { panic("why") }},
		{"an abort", 500, http.ErrAbortHandler, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"a panic after a status", 401, "why", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401); panic("why") }},
		{"a panic after the body", 200, "why", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x"); panic("why") }},
	} {
		for _, refunds := range []bool{true, false} {
			var got []int
			requests := []limiter.Request{p.Request(c.name, 2), other.Request(c.name, 1.5), slow.Request(c.name, 1)}
			h := New(l, fixed(requests...), WithRefundIf(func(status int) bool {
				got = append(got, status)
				return refunds
			}), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))(c.handle)
			func() {
				defer func() {
					if r := recover(); r != c.panics {
						t.Errorf("%s: panics with %v, want %v", c.name, r, c.panics)
					}
				}()
				h.ServeHTTP(kept{httptest.NewRecorder()}, request())
			}()
			if len(got) != 1 || got[0] != c.status {
				t.Errorf("%s: got the status %v, want %d", c.name, got, c.status)
			}
			want := []float64{2, 1.5}
			if refunds {
				want = []float64{0, 0}
			}
			for i := range want {
				if got := level(t, l, requests[i].Policy, c.name); math.Abs(got-want[i]) > 0.01 {
					t.Errorf("%s: level of %s %v, want %v", c.name, requests[i].Policy.Name, got, want[i])
				}
			}
			if got := level(t, l, slow, c.name); got < 0.9 {
				t.Errorf("%s: the queue gave its place back", c.name)
			}
			if err := l.Reset(t.Context(), slow, c.name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged %s", &log)
	}
}

// TestRefundIfGranted checks that a denial, a replayed result and a result without a
// decision refund nothing, and that granted units go back even if the client goes away during the answer.
func TestRefundIfGranted(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour, OnError: limiter.FailOpen}
	l := limiter.NewMemory(nil)
	ctx := t.Context()
	always := WithRefundIf(func(int) bool { return true })
	if _, err := l.AllowN(ctx, p, "k", 3); err != nil {
		t.Fatal(err)
	}
	if w := get(New(l, fixed(p.Request("k", 1)), always)(&answering{status: 200}), request()); w.Code != 429 || level(t, l, p, "k") != 3 {
		t.Errorf("denied: got %d, level %v", w.Code, level(t, l, p, "k"))
	}

	again := p.Request("again", 1)
	again.IdempotencyKey = "order 1"
	for _, opts := range [][]Option{nil, {always}} { // counted, then replayed
		get(New(l, fixed(again), opts...)(&answering{status: 200}), request())
		if got := level(t, l, p, "again"); got != 1 {
			t.Errorf("replayed: level %v, want 1", got)
		}
	}

	leaving, leave := context.WithCancel(ctx)
	get(New(l, fixed(p.Request("gone", 1)), always)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); leave() })), request().WithContext(leaving))
	if got := level(t, l, p, "gone"); got != 0 {
		t.Errorf("the client has gone: level %v, want 0", got)
	}

	var log bytes.Buffer
	logger := WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	observed := 0
	down := gone(t, func(context.Context, limiter.Observation) { observed++ })
	if w := get(New(down, fixed(p.Request("k", 1)), always, logger)(&answering{status: 200}), request()); w.Code != 200 || observed != 1 || log.Len() > 0 {
		t.Errorf("without a decision: got %d, %d requests to the limiter, logged %s; want 200, 1 and nothing", w.Code, observed, &log)
	}
	get(New(l, fixed(p.Request("closed", 1)), always, logger)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { _ = l.Close() })), request())
	if want := `msg="httplimit: a refund failed" policy=p error="pglimit: limiter is closed"`; !strings.Contains(log.String(), want) {
		t.Errorf("a failed refund: logged %s, want %s", &log, want)
	}
}

// TestRefundIfOfThatTime checks that units that leaked while the handler ran are not
// returned, and that nothing goes back to a later window than the request's.
func TestRefundIfOfThatTime(t *testing.T) {
	window := limiter.Policy{Name: "window", Algorithm: limiter.FixedWindow, Limit: 10, Period: 100 * time.Millisecond}
	bucket := limiter.Policy{Name: "bucket", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Second}
	refunded := map[limiter.Policy]float64{}
	var ran time.Duration
	var l *limiter.Limiter
	handle := func(http.ResponseWriter, *http.Request) {
		since := time.Now()
		for level(t, l, window, "k") > 0 || level(t, l, bucket, "k") > 9 {
			runtime.Gosched()
		}
		clear(refunded)
		ran = time.Since(since)
	}
	l = limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) {
		refunded[o.Request.Policy] = o.Result.Granted
	}})
	get(New(l, fixed(window.Request("k", 5), bucket.Request("k", 10)), WithRefundIf(func(int) bool { return true }))(http.HandlerFunc(handle)), request())
	if len(refunded) != 2 || refunded[window] != 0 || refunded[bucket] > 10-10*ran.Seconds() {
		t.Errorf("returned %v, want at most %v to the bucket and 0 to the window", refunded, 10-10*ran.Seconds())
	}
}

// TestRefundIfKeepsTheWriter checks that handlers keep the optional interfaces of a
// server's ResponseWriter.
func TestRefundIfKeepsTheWriter(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 100, Period: time.Hour}
	statuses := make(chan int, 1)
	limit := New(limiter.NewMemory(nil), fixed(p.Request("k", 1)), WithRefundIf(func(status int) bool { statuses <- status; return true }))
	server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex()); err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/flush":
			w.WriteHeader(201)
			w.(http.Flusher).Flush()
			if err := c.Flush(); err != nil {
				t.Error(err)
			}
			<-r.Context().Done() // the client has the header, and goes
		case "/copy":
			if n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("copied")); n != 6 || err != nil {
				t.Error(n, err)
			}
		case "/upgrade":
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			if conn, _, err := c.Hijack(); err != nil {
				t.Error(err)
			} else {
				conn.Close()
			}
		case "/hijack":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 418 I'm a teapot\r\nConnection: close\r\n\r\n")
			conn.Close()
		}
	})))
	defer server.Close()
	for path, want := range map[string]struct {
		status, counted int
		body            string
	}{"/flush": {201, 201, ""}, "/copy": {200, 200, "copied"}, "/hijack": {418, 200, ""}, "/upgrade": {101, 101, ""}} {
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var body string
		if path != "/flush" {
			body, _ = bufio.NewReader(res.Body).ReadString(0)
		}
		leave()
		res.Body.Close()
		if counted := <-statuses; res.StatusCode != want.status || body != want.body || counted != want.counted {
			t.Errorf("%s: got %d %q, counted as %d; want %d %q, %d", path, res.StatusCode, body, counted, want.status, want.body, want.counted)
		}
	}
}
