package httplimit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// fixed returns the same requests for every HTTP request.
func fixed(requests ...limiter.Request) Limits {
	return func(*http.Request) ([]limiter.Request, error) { return requests, nil }
}

func failing(err error) Limits {
	return func(*http.Request) ([]limiter.Request, error) { return nil, err }
}

// answering is a handler with that status, which counts its calls.
type answering struct {
	status int
	calls  atomic.Int64
}

func (a *answering) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.calls.Add(1)
	w.WriteHeader(a.status)
}

func get(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func request() *http.Request { return httptest.NewRequest("GET", "/", nil) }

func level(t *testing.T, l *limiter.Limiter, p limiter.Policy, key string) float64 {
	t.Helper()
	r := must.OK(l.Check(context.Background(), p, key, 0))(t)
	return r.Level
}

// gone returns a limiter over a database that does not exist.
func gone(t *testing.T, observe func(context.Context, limiter.Observation)) *limiter.Limiter {
	return failingWith(t, errors.New("no route to host"), observe)
}

// failingWith returns a limiter whose connections fail with that error.
func failingWith(t *testing.T, failure error, observe func(context.Context, limiter.Observation)) *limiter.Limiter {
	t.Helper()
	config := must.OK(pgxpool.ParseConfig("postgres://127.0.0.1:1/none?sslmode=disable"))(t)
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, failure }
	pool := must.OK(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	l := must.OK(limiter.New(pool, &limiter.Config{Logger: slog.New(slog.DiscardHandler), Observe: observe}))(t)
	return l
}

func TestNewNoDecision(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
	open := p
	open.OnError = limiter.FailOpen
	again := p.Request("k", 1)
	again.IdempotencyKey = "order 1"
	queue := again
	queue.Policy.Algorithm = limiter.LeakyBucketQueue
	memory, down := limiter.NewMemory(nil), gone(t, nil)
	refused := failingWith(t, &pgconn.PgError{Severity: "FATAL", Code: "22023", Message: `role "gone" does not exist`}, nil)
	over, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	for _, c := range []struct {
		name     string
		l        *limiter.Limiter
		requests Limits
		ctx      context.Context
		status   int
		logged   string
	}{
		{"no key", memory, failing(fmt.Errorf("here: %w", ErrNoKey)), nil, 403, ""},
		{"requests fails", memory, failing(errors.New("no such plan")), nil, 500, "ERROR no such plan"},
		{"requests is cancelled, the HTTP request is not", memory, failing(context.Canceled), nil, 500, "ERROR context canceled"},
		{"requests fails with a limiter's error", memory, failing(limiter.ErrUnavailable), nil, 500, "ERROR pglimit: database unavailable"},
		{"no cost", memory, fixed(p.Request("k", 0)), nil, 500, "ERROR pglimit: invalid: cost 0: must be positive; Check at cost 0 reads without consuming"},
		{"invalid, failing open", down, fixed(open.Request("", 1)), nil, 500, `ERROR pglimit: invalid: key "": is empty; use a constant such as "all" for a limit that all callers share`},
		{"a key that is too long", memory, fixed(p.Request(strings.Repeat("x", 1<<20), 1)), nil, 400, "WARN pglimit: invalid: key \"" + strings.Repeat("x", 40) + "\"… (1048576 bytes): is longer than 1024 bytes; hash it first"},
		{"a key with NUL, several", memory, fixed(open.Request("k", 1), p.Request("a\x00b", 1)), nil, 400, `WARN requests[1]: pglimit: invalid: key "a\x00b": holds a NUL byte`},
		{"a key that is not UTF-8, failing open", down, fixed(open.Request("\xff", 1)), nil, 400, `WARN pglimit: invalid: key "\xff": is not valid UTF-8; encode it first`},
		{"a long error", memory, failing(fmt.Errorf("no plan %s", strings.Repeat("é", 1<<20))), nil, 500, "ERROR no plan " + strings.Repeat("é", 496) + "… (2097160 bytes)"},
		{"one key for all", memory, fixed(again, p.Request("l", 1)), nil, 500, "ERROR pglimit: invalid: requests[1].IdempotencyKey \"\": must be that of requests[0], \"order 1\": all requests count once together"},
		{"a queue remembers nothing", memory, fixed(queue), nil, 500, "ERROR pglimit: unsupported: an IdempotencyKey with wait; only Do, Grant, AllowAll, AllowAny, Reserve and ReserveUpTo take one"},
		{"the deadline is over", memory, fixed(p.Request("k", 1)), over, 503, "WARN pglimit: context deadline exceeded"},
		{"no database", down, fixed(p.Request("k", 1)), nil, 503, "WARN "},
		{"no database, several", down, fixed(p.Request("k", 1), open.Request("l", 1)), nil, 503, "WARN "},
		{"misconfigured, failing open", refused, fixed(open.Request("k", 1)), nil, 503, "WARN "},
		{"misconfigured, all failing open", refused, fixed(open.Request("k", 1), open.Request("l", 1)), nil, 503, "WARN "},
		{"no database, failing open", down, fixed(open.Request("k", 1)), nil, 200, ""},
		{"no database, all failing open", down, fixed(open.Request("k", 1), open.Request("l", 1)), nil, 200, ""},
	} {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		r := request()
		if c.ctx != nil {
			r = r.WithContext(c.ctx)
		}
		next := &answering{status: 200}
		w := get(New(c.l, c.requests, WithLogger(logger), WithXRateLimit(), WithRefundIf(func(int) bool { return true }))(next), r)
		if w.Code != c.status || (next.calls.Load() == 1) != (c.status == 200) {
			t.Errorf("%s: got %d and %d calls, want %d", c.name, w.Code, next.calls.Load(), c.status)
		}
		if w.Header()[policyField] != nil || w.Header()[limitField] != nil || w.Header()[retryField] != nil || w.Header()[xLimitField] != nil {
			t.Errorf("%s: got fields without a decision: %q", c.name, w.Header())
		}
		want := lineOf(c.logged)
		if !bytes.HasPrefix(log.Bytes(), []byte(want)) || want == "" && log.Len() > 0 {
			t.Errorf("%s: logged %s, want %s", c.name, &log, want)
		}
		if c.status == 200 {
			continue
		}
		if err := plainProblem(w); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		log.Reset()
		var got error
		w = get(New(c.l, c.requests, WithLogger(logger), WithOnError(func(w http.ResponseWriter, _ *http.Request, err error) {
			got = err
			w.WriteHeader(http.StatusTeapot)
		}))(next), r)
		if w.Code != http.StatusTeapot || got == nil || log.Len() > 0 {
			t.Errorf("%s: OnError: got %d, %v, logged %s", c.name, w.Code, got, &log)
		}
	}
}

// lineOf returns what is logged for a level and an error, up to the error's end if there is one.
func lineOf(logged string) string {
	if logged == "" {
		return ""
	}
	level, err, _ := strings.Cut(logged, " ")
	line := fmt.Sprintf("level=%s msg=\"httplimit: no decision\"%s error=", level, map[string]string{"WARN": " since_last=1"}[level])
	if err != "" {
		line += fmt.Sprintf("%q\n", err)
	}
	return line
}

// plainProblem returns what is wrong with the body of an answer that no policy denied.
func plainProblem(w *httptest.ResponseRecorder) error {
	var problem struct {
		Type, Title string
		Status      int
		Violated    []string `json:"violated-policies"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Type != "about:blank" || problem.Title != http.StatusText(w.Code) ||
		problem.Status != w.Code || problem.Violated != nil || w.Header().Get("Content-Type") != "application/problem+json" {
		return fmt.Errorf("%s, %q: %v", w.Body, w.Header(), err)
	}
	return nil
}

// TestNewNil: nil stands for the default.
func TestNewNil(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
	if w := get(New(limiter.NewMemory(nil), fixed(p.Request("k", 2)), WithOnDeny(nil), WithOnError(nil), WithLogger(nil))(&answering{status: 200}), request()); w.Code != 413 || w.Header()[retryField] != nil {
		t.Errorf("OnDeny(nil): got %d, %q", w.Code, w.Header())
	}
}

// TestNewNoKey: who has no key passes or is refused, as WithNoKey says. Another error is an error.
func TestNewNoKey(t *testing.T) {
	memory, next := limiter.NewMemory(nil), &answering{status: 200}
	if w := get(New(memory, failing(ErrNoKey), WithNoKey(Pass))(next), request()); w.Code != 200 || next.calls.Load() != 1 {
		t.Errorf("NoKey(Pass): got %d", w.Code)
	}
	if w := get(New(memory, failing(errors.New("no such plan")), WithNoKey(Pass), WithLogger(slog.New(slog.DiscardHandler)))(next), request()); w.Code != 500 {
		t.Errorf("NoKey(Pass), another error: got %d", w.Code)
	}
	if w := get(New(memory, failing(ErrNoKey), WithNoKey(Pass), WithNoKey(Refuse))(next), request()); w.Code != 403 {
		t.Errorf("NoKey(Refuse): got %d", w.Code)
	}
}

// aborted reports whether f panics with http.ErrAbortHandler.
func aborted(f func()) (yes bool) {
	defer func() { yes = recover() == http.ErrAbortHandler }()
	f()
	return
}

var slow = limiter.Policy{Name: "slow", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 4}

// TestNewCancelledInQueue checks that granted units go back, and that middleware which
// recovers from the abort does not answer 200.
func TestNewCancelledInQueue(t *testing.T) {
	var cancel context.CancelFunc
	l := limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) {
		if o.Result.Delay > 0 { // in the queue, before the wait
			cancel()
		}
	}})
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 100, Period: time.Hour}
	for _, c := range []struct {
		key      string
		requests Limits
		of       limiter.Policy
	}{
		{"one", fixed(slow.Request("one", 1)), slow},
		{"several", fixed(slow.Request("several", 1), p.Request("several", 1)), p},
	} {
		var ctx context.Context
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		next := &answering{status: 200}
		h := New(l, c.requests, WithOnError(func(_ http.ResponseWriter, _ *http.Request, err error) { t.Error(err) }))(next)
		if w := get(h, request()); w.Code != 200 {
			t.Fatalf("the first request need not wait: got %d, want 200", w.Code)
		}
		w := httptest.NewRecorder()
		if !aborted(func() { h.ServeHTTP(w, request().WithContext(ctx)) }) || w.Code != 503 || w.Body.Len() > 0 {
			t.Errorf("%s: got %d %q", c.key, w.Code, w.Body)
		}
		if next.calls.Load() != 1 {
			t.Errorf("%s: the cancelled request was served", c.key)
		}
		for _, of := range []limiter.Policy{slow, c.of} {
			if got := level(t, l, of, c.key); got < 0.9 || got > 1.01 {
				t.Errorf("%s: the level of %s is %v, want 1, for the first request only", c.key, of.Name, got)
			}
		}
	}
}
