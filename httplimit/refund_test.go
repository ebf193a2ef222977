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
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// kept is a ResponseWriter like a server's, whose connection cannot be hijacked.
type kept struct{ *httptest.ResponseRecorder }

func (kept) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errors.New("kept") }
func (k kept) FlushError() error                          { k.Flush(); return nil }
func (k kept) ReadFrom(r io.Reader) (int64, error)        { return io.Copy(k.ResponseRecorder, r) }

// TestRefundIf checks that the status that the client gets decides, however the handler sets
// it. A request counts if its client leaves before the answer begins, and then
// WithRefundIf's function is not called.
func TestRefundIf(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	other := limiter.Policy{Name: "other", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour}
	status := func(w http.ResponseWriter, code int) { w.WriteHeader(code) }
	body := func(w http.ResponseWriter) { _, _ = io.WriteString(w, "x") }
	flush := func(w http.ResponseWriter) { w.(http.Flusher).Flush() }
	for _, c := range []struct {
		name   string
		status int // given to the function; 0: not called
		panics any
		handle func(w http.ResponseWriter, leave func())
	}{
		{"nothing written", 200, nil, func(http.ResponseWriter, func()) {}},
		{"written", 200, nil, func(w http.ResponseWriter, _ func()) { body(w) }},
		{"a status", 401, nil, func(w http.ResponseWriter, _ func()) { status(w, 401) }},
		{"a second status", 401, nil, func(w http.ResponseWriter, _ func()) { status(w, 401); status(w, 200) }},
		{"a status after the body", 200, nil, func(w http.ResponseWriter, _ func()) { _, _ = w.Write([]byte("x")); status(w, 401) }},
		{"1xx", 404, nil, func(w http.ResponseWriter, _ func()) { status(w, 103); status(w, 404) }},
		{"1xx alone", 200, nil, func(w http.ResponseWriter, _ func()) { status(w, 103) }},
		{"a hijack that fails", 404, nil, func(w http.ResponseWriter, _ func()) {
			if _, _, err := w.(http.Hijacker).Hijack(); err != nil {
				status(w, 404)
			}
		}},
		{"a panic after a flush", 200, "why", func(w http.ResponseWriter, _ func()) { flush(w); panic("why") }},
		{"a panic after a controller's flush", 200, "why", func(w http.ResponseWriter, _ func()) { _ = http.NewResponseController(w).Flush(); panic("why") }},
		{"a panic after a copy", 200, "why", func(w http.ResponseWriter, _ func()) {
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("x"))
			panic("why")
		}},
		{"a panic", 500, "why", func(http.ResponseWriter, func()) { panic("why") }},
		{"an abort", 500, http.ErrAbortHandler, func(http.ResponseWriter, func()) { panic(http.ErrAbortHandler) }},
		{"a panic after a status", 401, "why", func(w http.ResponseWriter, _ func()) { status(w, 401); panic("why") }},

		{"gone: nothing written", 0, nil, func(_ http.ResponseWriter, leave func()) { leave() }},
		{"gone: 1xx before", 0, nil, func(w http.ResponseWriter, leave func()) { status(w, 103); leave() }},
		{"gone: a status after", 0, nil, func(w http.ResponseWriter, leave func()) { leave(); status(w, 502) }},
		{"gone: a body after", 0, nil, func(w http.ResponseWriter, leave func()) { leave(); body(w) }},
		{"gone: a flush after", 0, nil, func(w http.ResponseWriter, leave func()) { leave(); flush(w) }},
		{"gone: a panic", 0, "why", func(_ http.ResponseWriter, leave func()) { leave(); panic("why") }},
		{"gone: a failed hijack", 0, nil, func(w http.ResponseWriter, leave func()) { leave(); _, _, _ = w.(http.Hijacker).Hijack() }},
		{"gone after a status", 404, nil, func(w http.ResponseWriter, leave func()) { status(w, 404); leave(); body(w) }},
		{"gone after a flush", 200, nil, func(w http.ResponseWriter, leave func()) { flush(w); leave() }},
		{"gone after a body", 200, "why", func(w http.ResponseWriter, leave func()) { body(w); leave(); panic("why") }},
	} {
		for _, refunds := range []bool{true, false} {
			l := limiter.NewMemory(nil)
			var asked []int
			requests := []limiter.Request{p.Request("k", 2), other.Request("k", 1.5), slow.Request("k", 1)}
			ctx, leave := context.WithCancel(t.Context())
			h := New(l, fixed(requests...), WithRefundIf(func(status int) bool {
				asked = append(asked, status)
				return refunds
			}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.handle(w, leave) }))
			func() {
				defer func() {
					if r := recover(); r != c.panics {
						t.Errorf("%s: panics with %v, want %v", c.name, r, c.panics)
					}
				}()
				h.ServeHTTP(kept{httptest.NewRecorder()}, request().WithContext(ctx))
			}()
			leave()
			want, counts := []int{c.status}, []float64{2, 1.5, 1}
			if c.status == 0 {
				want = nil
			} else if refunds { // but for the queue's place
				counts = []float64{0, 0, 1}
			}
			if !slices.Equal(asked, want) {
				t.Errorf("%s: asked about %v, want %v", c.name, asked, want)
			}
			for i, r := range requests {
				if got := level(t, l, r.Policy, "k"); math.Abs(got-counts[i]) > 0.1 {
					t.Errorf("%s: level of %s %v, want %v", c.name, r.Policy.Name, got, counts[i])
				}
			}
		}
	}
}

// TestRefundIfBlocks sends six logins at once under a limit of five with BlockFor, alone and
// with a second limit. The block that the sixth begins goes with the first refund, and stays if
// all five fail. In all five logins fail, however many a guesser sends.
func TestRefundIfBlocks(t *testing.T) {
	other := limiter.Policy{Name: "other", Algorithm: limiter.GCRA, Limit: 100, Period: time.Hour}
	for i := range 2 * 6 * len(limiter.Algorithms()) {
		failed, a := i/2%6, limiter.Algorithms()[i/12]
		p := limiter.Policy{Name: "login", Algorithm: a, Limit: 5, Period: time.Hour, BlockFor: 24 * time.Hour}
		if a == limiter.LeakyBucketQueue {
			continue
		}
		l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return at }})
		running, failures := 0, 0
		var h http.Handler
		h = New(l, fixed([]limiter.Request{p.Request("k", 1), other.Request("k", 1)}[:1+i%2]...), WithRefundIf(func(status int) bool { return status != 401 }))(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				running++
				mine := running
				if mine <= 5 {
					if code := get(h, request()).Code; (code == 429) != (mine == 5) {
						t.Errorf("%s: with %d running: got %d", a, mine, code)
					}
				}
				if mine > 5 || mine <= failed {
					failures++
					w.WriteHeader(401)
				}
			}))
		for range 20 {
			get(h, request())
		}
		if got := get(h, request()).Code; failures != 5 || got != 429 {
			t.Errorf("%s: %d of the first five failed, and %d in all, then got %d; want 5 and 429", a, failed, failures, got)
		}
	}
}

// TestRefundIfDeadline checks that a deadline which passes is not a client that has gone.
func TestRefundIfDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		get(New(l, fixed(three.Request("k", 1)), WithRefundIf(func(int) bool { return true }))(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ctx.Done() })), request().WithContext(ctx))
		if got := level(t, l, three, "k"); got != 0 {
			t.Errorf("level %v, want 0", got)
		}
	})
}

// TestRefundIfAtTheEdge checks that a request gives nothing back to a window that began
// while its handler ran.
func TestRefundIfAtTheEdge(t *testing.T) {
	now := at
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		now = now.Add(three.Period)
		if r, err := l.AllowN(t.Context(), three, "k", 3); err != nil || !r.Allowed {
			t.Errorf("the next window: %+v, %v", r, err)
		}
	})
	get(New(l, fixed(three.Request("k", 3)), WithRefundIf(func(int) bool { return true }))(next), request())
	if got := level(t, l, three, "k"); got != 3 {
		t.Errorf("level %v, want 3", got)
	}
}

// TestRefundIfGranted checks that a denial, a replayed result and a result without a
// decision refund nothing, and that granted units go back even if the client goes away during the answer.
func TestRefundIfGranted(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour, OnError: limiter.FailOpen}
	l := limiter.NewMemory(nil)
	ctx := t.Context()
	always := WithRefundIf(func(int) bool { return true })
	must.OK(l.AllowN(ctx, p, "k", 3))(t)
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
	local := p
	local.OnError, local.LocalShare = limiter.FailLocal, 1
	get(New(down, fixed(local.Request("k", 1)), always, logger)(&answering{status: 200}), request())
	if got := level(t, down, local, "k"); got != 0 {
		t.Errorf("decided in memory: level %v, want 0", got)
	}
	get(New(l, fixed(p.Request("closed", 1)), always, logger)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { _ = l.Close() })), request())
	if want := `msg="httplimit: a refund failed" since_last=1 policy=p error="pglimit: limiter is closed"`; !strings.Contains(log.String(), want) {
		t.Errorf("a failed refund: logged %s, want %s", &log, want)
	}
}

// TestRefundIfKeepsTheWriter checks that handlers keep the optional interfaces of a
// server's ResponseWriter, and that what they call reaches the server.
func TestRefundIfKeepsTheWriter(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 100, Period: time.Hour}
	statuses, flushed := make(chan int, 1), make(chan struct{})
	limit := New(limiter.NewMemory(nil), fixed(p.Request("k", 1)), WithRefundIf(func(status int) bool { statuses <- status; return false }))
	for path, c := range map[string]struct {
		status, counted int
		handle          func(http.ResponseWriter, *http.ResponseController) error
	}{
		"controller": {200, 200, func(_ http.ResponseWriter, c *http.ResponseController) error {
			err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex(), c.Flush())
			<-flushed
			return err
		}},
		"hijack": {418, 200, func(_ http.ResponseWriter, c *http.ResponseController) error {
			conn, _, err := c.Hijack()
			if err == nil {
				_, err = io.WriteString(conn, "HTTP/1.1 418 I'm a teapot\r\nConnection: close\r\n\r\n")
				conn.Close()
			}
			return err
		}},
		"upgrade": {101, 101, func(w http.ResponseWriter, c *http.ResponseController) error {
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, _, err := c.Hijack()
			if err == nil {
				conn.Close()
			}
			return err
		}},
	} {
		server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := c.handle(w, http.NewResponseController(w)); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		})))
		server.Client().Timeout = time.Minute // prevents a hang
		res := must.OK(server.Client().Get(server.URL))(t)
		if path == "controller" {
			flushed <- struct{}{}
		}
		res.Body.Close()
		if counted := <-statuses; res.StatusCode != c.status || counted != c.counted {
			t.Errorf("%s: got %d, counted as %d; want %d, %d", path, res.StatusCode, counted, c.status, c.counted)
		}
		server.Close()
	}
}
