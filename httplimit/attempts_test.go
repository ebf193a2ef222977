package httplimit

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// code makes the second failure wait for a minute.
var code = limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 2, Period: 24 * time.Hour, BlockFor: time.Minute}

// trial returns the attempt of a request: its key and place are in its query.
func trial(r *http.Request) (Attempt, error) {
	if !r.URL.Query().Has("key") {
		return Attempt{}, ErrNoKey
	}
	return Attempt{Policy: code, Key: r.URL.Query().Get("key"), AttemptOptions: limiter.AttemptOptions{From: r.URL.Query().Get("from"), TTL: time.Hour}}, nil
}

// attempted returns a request for an attempt of alice.
func attempted(place string) *http.Request {
	r := request()
	r.URL.RawQuery = "key=alice&from=" + place
	return r
}

// TestAttempts checks that the status decides whether an attempt failed or succeeded. A client
// that leaves before the response begins has failed, and so has one whose handler panics.
func TestAttempts(t *testing.T) {
	t.Parallel()
	redirect := func(status int) bool { return status == 303 }
	for _, c := range []struct {
		name   string
		failed bool
		panics any
		opts   []Option
		handle func(w http.ResponseWriter, leave func())
	}{
		{"nothing written", false, nil, nil, func(http.ResponseWriter, func()) {}},
		{"200", false, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(200) }},
		{"303", false, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(303) }},
		{"400", true, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(400) }},
		{"401", true, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(401) }},
		{"403", true, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(403) }},
		{"500", true, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(500) }},
		{"503", true, nil, nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(503) }},
		{"200 of a form", true, nil, []Option{WithSucceededIf(redirect)}, func(w http.ResponseWriter, _ func()) { w.WriteHeader(200) }},
		{"303 of a form", false, nil, []Option{WithSucceededIf(redirect)}, func(w http.ResponseWriter, _ func()) { w.WriteHeader(303) }},
		{"a panic", true, "why", nil, func(http.ResponseWriter, func()) { panic("why") }},
		{"a panic after 200", true, "why", nil, func(w http.ResponseWriter, _ func()) { w.WriteHeader(200); panic("why") }},
		{"gone: nothing written", true, nil, nil, func(_ http.ResponseWriter, leave func()) { leave() }},
		{"gone: 200 after", true, nil, nil, func(w http.ResponseWriter, leave func()) { leave(); w.WriteHeader(200) }},
		{"gone: any status", true, nil, []Option{WithSucceededIf(func(int) bool { return true })}, func(_ http.ResponseWriter, leave func()) { leave() }},
		{"gone after 200", false, nil, nil, func(w http.ResponseWriter, leave func()) { w.WriteHeader(200); leave() }},
		{"gone after 401", true, nil, nil, func(w http.ResponseWriter, leave func()) { w.WriteHeader(401); leave() }},
	} {
		l := limiter.NewMemory(nil)
		ctx, leave := context.WithCancel(t.Context())
		h := NewAttempts(l, trial, c.opts...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ticket, ok := TicketFromContext(r.Context()); !ok || ticket.ID == "" || ticket.ExpiresAt.Sub(ticket.Result.At) != time.Hour {
				t.Errorf("%s: the ticket %+v, %v", c.name, ticket, ok)
			}
			c.handle(w, leave)
		}))
		func() {
			defer func() {
				if r := recover(); r != c.panics {
					t.Errorf("%s: panics with %v, want %v", c.name, r, c.panics)
				}
			}()
			if w := get(h, attempted("home").WithContext(ctx)); w.Header().Get("RateLimit") != "" {
				t.Errorf("%s: %v", c.name, w.Header())
			}
		}()
		leave()
		u, err := l.Usage(t.Context(), code, "alice")
		if err != nil || u.Reservations != 0 || (u.Result.Level == 1) != c.failed {
			t.Errorf("%s: %+v, %v", c.name, u, err)
		}
	}
}

// TestAttemptsOfStrangers checks that attempts which run at once are denied before their handler
// runs, that failures of strangers make strangers wait, and that the owner still gets in from
// where they got in before.
func TestAttemptsOfStrangers(t *testing.T) {
	t.Parallel()
	now := at
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	var h http.Handler
	ran := 0
	h = NewAttempts(l, trial)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran++
		if r.URL.Query().Has("right") {
			return
		}
		if again := get(h, attempted("cafe")); again.Code != 429 || again.Header().Get("Retry-After") == "" {
			t.Errorf("a second attempt at once: %d %v", again.Code, again.Header())
		}
		w.WriteHeader(401)
	}))
	get(h, attempted("home&right"))
	for range 2 {
		if w := get(h, attempted("cafe")); w.Code != 401 {
			t.Errorf("a guess: %d", w.Code)
		}
	}
	if w := get(h, attempted("cafe&right")); w.Code != 429 || w.Header().Get("Retry-After") != "60" || w.Header().Get("RateLimit-Policy") != `"code";q=2;w=86400` || w.Header().Get("RateLimit") != `"code";r=0;t=60` || !strings.Contains(w.Body.String(), `"violated-policies":["code"]`) {
		t.Errorf("a guess during the wait: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := get(h, attempted("home&right")); w.Code != 200 || ran != 4 {
		t.Errorf("the owner: %d, after %d handlers", w.Code, ran)
	}
	now = now.Add(time.Minute)
	if w := get(h, attempted("cafe&right")); w.Code != 200 {
		t.Errorf("after the wait: %d", w.Code)
	}
	down := NewAttempts(l, trial, WithOnDeny(func(w http.ResponseWriter, _ *http.Request, denied *limiter.DeniedError) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, string(denied.Result.Reason))
	}))(&answering{status: 401})
	for range 2 {
		get(down, attempted("cafe"))
	}
	if w := get(down, attempted("cafe")); w.Code != 400 || w.Body.String() != "blocked" || w.Header().Get("Retry-After") == "" {
		t.Errorf("WithOnDeny: %d %s %v", w.Code, w.Body, w.Header())
	}
}

// TestAttemptsReported checks that the report of a handler counts instead of that of its
// status, and that a report which fails is logged.
func TestAttemptsReported(t *testing.T) {
	t.Parallel()
	l := limiter.NewMemory(nil)
	var log bytes.Buffer
	h := NewAttempts(l, trial, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ticket, _ := TicketFromContext(r.Context())
		switch {
		case r.URL.Query().Has("close"):
			_ = l.Close()
		case r.URL.Query().Has("right"):
			if err := l.Succeeded(r.Context(), ticket.ID); err != nil {
				t.Error(err)
			}
			w.WriteHeader(401)
		default:
			if _, err := l.Failed(r.Context(), ticket.ID); err != nil {
				t.Error(err)
			}
		}
	}))
	for query, want := range map[string]float64{"home&right": 0, "home": 1} {
		get(h, attempted(query))
		if r, err := l.Check(t.Context(), code, "alice", 0); err != nil || r.Level != want || log.Len() > 0 {
			t.Errorf("%s: %+v, %v; %s", query, r, err, &log)
		}
		if err := l.Reset(t.Context(), code, "alice"); err != nil {
			t.Error(err)
		}
	}
	get(h, attempted("home&close"))
	if want := `msg="httplimit: an attempt was not reported and will count as failed" since_last=1 policy=code error="pglimit: limiter is closed"`; !strings.Contains(log.String(), want) {
		t.Errorf("logged %s, want %s", &log, want)
	}
}

// TestAttemptsWithout checks the responses without an attempt, and the wrong uses.
func TestAttemptsWithout(t *testing.T) {
	t.Parallel()
	quiet := WithLogger(slog.New(slog.DiscardHandler))
	l, next := limiter.NewMemory(nil), &answering{status: 200}
	get(NewAttempts(l, trial, WithNoKey(Pass))(next), request())
	preflight := request()
	preflight.Method = http.MethodOptions
	preflight.Header = http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"POST"}}
	get(NewAttempts(l, trial, WithPassPreflight())(next), preflight)
	if next.calls.Load() != 2 {
		t.Errorf("%d passed without a key or as a preflight, want 2", next.calls.Load())
	}
	bucket := func(*http.Request) (Attempt, error) {
		return Attempt{Policy: limiter.PerHour("p", 1), Key: "k"}, nil
	}
	for want, w := range map[string]int{
		"no key":                get(NewAttempts(l, trial, quiet)(next), request()).Code - 403,
		"a long place":          get(NewAttempts(l, trial, quiet)(next), attempted(strings.Repeat("x", 1025))).Code - 400,
		"a policy of requests":  get(NewAttempts(l, bucket, quiet)(next), request()).Code - 500,
		"no database":           get(NewAttempts(gone(t, nil), trial, quiet)(next), attempted("home")).Code - 503,
		"passed to the handler": int(next.calls.Load()) - 2,
	} {
		if w != 0 {
			t.Errorf("%s: off by %d", want, w)
		}
	}
	for name, wrong := range map[string]func(){
		"the limiter":     func() { NewAttempts(nil, trial) },
		"attempt":         func() { NewAttempts(l, nil) },
		"WithRefundIf":    func() { NewAttempts(l, trial, WithRefundIf(func(int) bool { return true })) },
		"WithXRateLimit":  func() { NewAttempts(l, trial, WithXRateLimit()) },
		"next":            func() { NewAttempts(l, trial)(nil) },
		"WithSucceededIf": func() { New(l, fixed(), WithSucceededIf(func(int) bool { return true })) },
		"the function":    func() { WithSucceededIf(nil) },
	} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, name) {
					t.Errorf("%s: panics with %q", name, text)
				}
			}()
			wrong()
		}()
	}
}

// TestAttemptsHijacked checks that an attempt has failed whose handler took the connection,
// whatever it wrote, unless the handler reports it.
func TestAttemptsHijacked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, reports bool }{{}, {first: true}, {reports: true}} {
		l, reported := limiter.NewMemory(nil), make(chan struct{})
		always := WithSucceededIf(func(int) bool { return true })
		h := NewAttempts(l, trial, always)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.first {
				w.WriteHeader(http.StatusSwitchingProtocols)
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if ticket, _ := TicketFromContext(r.Context()); c.reports {
				err = l.Succeeded(r.Context(), ticket.ID)
			}
			if err != nil {
				t.Error(err)
			}
		}))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(reported)
			h.ServeHTTP(w, r)
		}))
		server.Client().Timeout = time.Minute // prevents a hang
		if res, err := server.Client().Get(server.URL + "?key=alice&from=home"); err == nil {
			res.Body.Close()
		}
		<-reported
		server.Close()
		u, err := l.Usage(t.Context(), code, "alice")
		if err != nil || u.Reservations != 0 || (u.Result.Level == 1) == c.reports {
			t.Errorf("%+v: %+v, %v", c, u, err)
		}
	}
}
