package httplimit

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestRefundIfGone checks that a request counts if its client goes away before the answer
// begins, however the handler ends, and that WithRefundIf's function is not asked.
func TestRefundIfGone(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	for _, c := range []struct {
		name   string
		status int // given to the function; 0: not called
		panics any
		handle func(leave func(), w http.ResponseWriter)
	}{
		{"nothing written", 0, nil, func(leave func(), _ http.ResponseWriter) { leave() }},
		{"1xx before", 0, nil, func(leave func(), w http.ResponseWriter) { w.WriteHeader(103); leave() }},
		{"a status after", 0, nil, func(leave func(), w http.ResponseWriter) { leave(); w.WriteHeader(502) }},
		{"a body after", 0, nil, func(leave func(), w http.ResponseWriter) { leave(); _, _ = io.WriteString(w, "x") }},
		{"a flush after", 0, nil, func(leave func(), w http.ResponseWriter) { leave(); w.(http.Flusher).Flush() }},
		{"a panic", 0, "why", func(leave func(), _ http.ResponseWriter) { leave(); panic("why") }},
		{"an abort", 0, http.ErrAbortHandler, func(leave func(), _ http.ResponseWriter) { leave(); panic(http.ErrAbortHandler) }},
		{"a failed hijack", 0, nil, func(leave func(), w http.ResponseWriter) { leave(); _, _, _ = w.(http.Hijacker).Hijack() }},

		{"a status before", 404, nil, func(leave func(), w http.ResponseWriter) { w.WriteHeader(404); leave(); _, _ = io.WriteString(w, "x") }},
		{"a flush before", 200, nil, func(leave func(), w http.ResponseWriter) { w.(http.Flusher).Flush(); leave() }},
		{"a panic after a body", 200, "why", func(leave func(), w http.ResponseWriter) { _, _ = io.WriteString(w, "x"); leave(); panic("why") }},
	} {
		l := limiter.NewMemory(nil)
		ctx, leave := context.WithCancel(t.Context())
		var asked []int
		h := New(l, fixed(p.Request("k", 1)), WithRefundIf(func(status int) bool { asked = append(asked, status); return true }))(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { c.handle(leave, w) }))
		func() {
			defer func() {
				if r := recover(); r != c.panics {
					t.Errorf("%s: panics with %v, want %v", c.name, r, c.panics)
				}
			}()
			h.ServeHTTP(kept{httptest.NewRecorder()}, request().WithContext(ctx))
		}()
		want, counts := []int{c.status}, 0.0
		if c.status == 0 {
			want, counts = nil, 1
		}
		if got := level(t, l, p, "k"); !slices.Equal(asked, want) || got != counts {
			t.Errorf("%s: asked about %v, level %v; want %v, %v", c.name, asked, got, want, counts)
		}
	}
}

// TestRefundIfDeadline checks that a deadline which passes is not a client that has gone.
func TestRefundIfDeadline(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	l := limiter.NewMemory(nil)
	ctx := &late{Context: t.Context()}
	asked := 0
	h := New(l, fixed(p.Request("k", 1)), WithRefundIf(func(status int) bool { asked = status; return true }))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			ctx.over.Store(true)
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
	get(h, request().WithContext(ctx))
	if got := level(t, l, p, "k"); asked != 503 || got != 0 {
		t.Errorf("asked about %d, level %v; want 503, 0", asked, got)
	}
}

// late is a context whose deadline passes when over is set.
type late struct {
	context.Context
	over atomic.Bool
}

func (l *late) Err() error {
	if l.over.Load() {
		return context.DeadlineExceeded
	}
	return l.Context.Err()
}

// TestRefundIfPasswordsByLeaving is an attack over TCP: a client sends passwords and
// closes each connection while the handler checks one. Each check counts, with a handler
// that stops without an answer and behind a proxy that answers 502.
func TestRefundIfPasswordsByLeaving(t *testing.T) {
	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Hour}
	checking := make(chan struct{})
	check := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		checking <- struct{}{}
		<-r.Context().Done() // the database's answer would come as an error
	})
	backend := httptest.NewServer(check)
	defer backend.Close()
	to, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	for name, next := range map[string]http.Handler{"direct": check, "proxy": proxy} {
		limit := New(limiter.NewMemory(nil), fixed(p.Request("alice", 1)), WithRefundIf(func(status int) bool { return status != http.StatusUnauthorized }))
		ended := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { ended <- struct{}{} }()
			limit(next).ServeHTTP(w, r)
		}))
		defer server.Close()
		checked := 0
		for range 200 {
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, "POST", server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				if res, err := server.Client().Do(r); err == nil {
					res.Body.Close()
				}
			}()
			select {
			case <-checking:
				checked++
				leave()
				<-ended
			case <-ended: // denied
			}
			<-answered
			leave()
		}
		if checked != 5 {
			t.Errorf("%s: %d passwords were checked, want 5", name, checked)
		}
	}
}
