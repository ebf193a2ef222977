package httplimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestDenyAnswersAsNew checks that a handler which decides itself answers a denial as New
// does, whatever the method, and that Deny answers nothing else.
func TestDenyAnswersAsNew(t *testing.T) {
	other := limiter.Policy{Name: "other", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute, Burst: 5}
	for name, c := range map[string]struct {
		requests []limiter.Request
		decide   func(context.Context, *limiter.Limiter, []limiter.Request) error
	}{
		"AllowN": {[]limiter.Request{three.Request("k", 1)}, func(ctx context.Context, l *limiter.Limiter, in []limiter.Request) error {
			r, err := l.AllowN(ctx, in[0].Policy, in[0].Key, in[0].Cost)
			return errors.Join(err, r.Err())
		}},
		"Reserve, wrapped": {[]limiter.Request{three.Request("k", 1)}, func(ctx context.Context, l *limiter.Limiter, in []limiter.Request) error {
			hold, err := l.Reserve(ctx, in[0], time.Minute)
			return fmt.Errorf("the job: %w", errors.Join(err, hold.Result.Err()))
		}},
		"AllowAll": {[]limiter.Request{other.Request("k", 1), three.Request("k", 1)}, func(ctx context.Context, l *limiter.Limiter, in []limiter.Request) error {
			all, err := l.AllowAll(ctx, in...)
			return errors.Join(err, all.Err())
		}},
		"above the burst": {[]limiter.Request{three.Request("k", 4)}, func(ctx context.Context, l *limiter.Limiter, in []limiter.Request) error {
			r, err := l.Do(ctx, in[0])
			return errors.Join(err, r.Err())
		}},
	} {
		l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return at }})
		must.OK(l.AllowN(t.Context(), three, "k", 3))(t)
		want := get(New(l, fixed(c.requests...))(&answering{status: 200}), request())
		got := httptest.NewRecorder()
		if !Deny(got, c.decide(t.Context(), l, c.requests)) {
			t.Errorf("%s: not answered", name)
		}
		if got.Code != want.Code || got.Code < 400 || got.Body.String() != want.Body.String() || !maps.EqualFunc(got.Header(), want.Header(), slices.Equal) {
			t.Errorf("%s: got %d %q\n%s, want %d %q\n%s", name, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
		}
	}
	for _, err := range []error{nil, limiter.Result{Allowed: true}.Err(), limiter.ErrUnavailable, ErrNoKey} {
		if w := httptest.NewRecorder(); Deny(w, err) || len(w.Header()) > 0 || w.Body.Len() > 0 {
			t.Errorf("%v: answered %d %q", err, w.Code, w.Header())
		}
	}
	w := httptest.NewRecorder() // of a test's denial, which lacks a policy
	if !Deny(w, &limiter.DeniedError{Result: limiter.Result{RetryAfter: 1500 * time.Millisecond}}) || w.Code != 429 || w.Header().Get(retryField) != "2" || w.Header()[limitField] != nil {
		t.Errorf("without a policy: got %d %q", w.Code, w.Header())
	}
}

// TestFromContext checks that the next handler gets the decision, that of the inner New, also
// without one from the database, and none if nothing was requested.
func TestFromContext(t *testing.T) {
	l, open := limiter.NewMemory(nil), three
	open.OnError = limiter.FailOpen
	other := three
	other.Name = "other"
	always := WithRefundIf(func(int) bool { return true })
	for name, c := range map[string]struct {
		h       func(next http.Handler) http.Handler
		want    []limiter.Policy
		source  limiter.Source
		nothing bool
	}{
		"one":          {h: New(l, fixed(three.Request("one", 1))), want: []limiter.Policy{three}, source: limiter.SourceMemory},
		"several":      {h: New(l, fixed(three.Request("a", 1), other.Request("a", 1))), want: []limiter.Policy{three, other}, source: limiter.SourceMemory},
		"refunding":    {h: New(l, fixed(three.Request("b", 1)), always), want: []limiter.Policy{three}, source: limiter.SourceMemory},
		"failing open": {h: New(gone(t, nil), fixed(open.Request("k", 1))), want: []limiter.Policy{open}, source: limiter.SourceDegraded},
		"all failing open": {h: New(gone(t, nil), fixed(open.Request("k", 1), open.Request("l", 1))), want: []limiter.Policy{open, open},
			source: limiter.SourceDegraded},
		"inner": {h: func(next http.Handler) http.Handler {
			return New(l, fixed(three.Request("c", 1)))(New(l, fixed(other.Request("c", 1)))(next))
		}, want: []limiter.Policy{other}, source: limiter.SourceMemory},
		"no requests": {h: New(l, fixed()), nothing: true},
		"no key":      {h: New(l, failing(ErrNoKey), WithNoKey(Pass)), nothing: true},
	} {
		called := false
		get(c.h(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			called = true
			requests, all, ok := FromContext(r.Context())
			if ok == c.nothing || all.Allowed != ok || len(requests) != len(c.want) || len(all.PerRequest) != len(c.want) {
				t.Errorf("%s: got %v, %+v, %v", name, requests, all, ok)
				return
			}
			for i, p := range c.want {
				if r := all.PerRequest[i]; requests[i].Policy != p || r.Policy != p || r.Source != c.source {
					t.Errorf("%s: request %d is %+v, its result %+v", name, i, requests[i], r)
				}
			}
		})), request())
		if !called {
			t.Errorf("%s: the handler was not called", name)
		}
	}
}

// TestNewKeepsThePattern checks that middleware outside of New sees what the mux inside
// matched, as metrics by route need.
func TestNewKeepsThePattern(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", &answering{status: 200})
	r := httptest.NewRequest("GET", "/items/7", nil)
	get(New(limiter.NewMemory(nil), fixed(three.Request("k", 1)))(mux), r)
	if r.Pattern != "GET /items/{id}" {
		t.Errorf("got pattern %q", r.Pattern)
	}
}

// TestWarningsAreLimited checks that each kind of warning is logged once a minute, with the
// number of those since the last, and that errors of the application are all logged.
func TestWarningsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
		lines := func() (found []string) {
			for _, m := range regexp.MustCompile(`level=(\w+) msg="httplimit: ([^"]*)"(?: since_last=(\d+))?`).FindAllStringSubmatch(log.String(), -1) {
				found = append(found, m[1]+" "+m[2]+" "+m[3])
			}
			log.Reset()
			return found
		}
		l := limiter.NewMemory(nil)
		closing := func(http.ResponseWriter, *http.Request) { _ = l.Close() }
		limits := fixed(three.Request("k", 1), three.Request("l", 1))
		h := New(l, func(r *http.Request) ([]limiter.Request, error) { return limits(r) }, logger, WithRefundIf(func(int) bool { return true }))(http.HandlerFunc(closing))
		expect := func(want ...string) {
			t.Helper()
			if got := lines(); !slices.Equal(got, want) {
				t.Errorf("logged %q, want %q", got, want)
			}
		}
		send := func(n int) {
			for range n {
				get(h, request())
			}
		}
		send(1) // both refunds fail: the limiter is closed
		expect("WARN a refund failed 1")
		send(500)
		expect("WARN no decision 1")
		time.Sleep(time.Minute - time.Microsecond)
		send(1)
		expect()
		time.Sleep(time.Microsecond)
		send(3)
		expect("WARN no decision 501")
		limits = failing(io.ErrUnexpectedEOF)
		send(2)
		expect("ERROR no decision ", "ERROR no decision ")
	})
}
