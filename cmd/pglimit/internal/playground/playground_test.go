package playground

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// newServer makes a Server that counts in memory.
func newServer(t *testing.T, changes ...func(*Config)) *Server {
	t.Helper()
	config := Config{Limiter: replay.InMemory, Version: "v1.2.3", Database: "memory", Logger: slog.New(slog.DiscardHandler)}
	for _, change := range changes {
		change(&config)
	}
	s := must.OK(New(config))(t)
	return s
}

// running is a Server that answers on the network.
type running struct {
	*Server
	webpagetest.Page
}

func newSite(t *testing.T, changes ...func(*Config)) *running {
	t.Helper()
	s := newServer(t, changes...)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return listen(t, s)
}

// listen serves s until the test ends.
func listen(t *testing.T, s *Server) *running {
	t.Helper()
	on := &running{s, webpagetest.New(t, s)}
	t.Cleanup(s.hub.Close)
	return on
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	mine := errors.New("mine")
	if _, err := New(Config{Limiter: func(*limiter.Config) (*limiter.Limiter, error) { return nil, mine }}); !errors.Is(err, mine) {
		t.Errorf("a limiter that cannot be made: %v", err)
	}
}

func TestSetup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var setup struct {
		Version, Database string
		Policies          []limiter.Policy
		MaxLogBytes       int64 `json:"max_log_bytes"`
	}
	_, text := s.Call(t, http.MethodGet, "/api/setup", "")
	webpagetest.Strict(t, text, &setup)
	if setup.Version != "v1.2.3" || setup.Database != "memory" || len(setup.Policies) != len(limiter.Algorithms()) || setup.MaxLogBytes != maxUpload {
		t.Fatalf("got %+v", setup)
	}
	for i, p := range setup.Policies {
		if err := p.Validate(); err != nil || p.Algorithm != limiter.Algorithms()[i] {
			t.Errorf("policy %d: %+v, %v", i, p, err)
		}
	}
}

// TestGuard: answers have the page's headers, but not under /limited/, and the host is
// checked.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(config *Config) { config.Host = "localhost" })
	for at, want := range map[string]string{"/": pagePolicy, "/api/events": pagePolicy, "/limited/gcra?limit=1&period=1h&key=k": ""} {
		if answer, _ := s.Call(t, http.MethodGet, at, ""); answer.Header.Get("Content-Security-Policy") != want {
			t.Errorf("%s: %v", at, answer.Header)
		}
		if answer, text := s.Call(t, http.MethodGet, at, "", "Host", "evil.example"); answer.StatusCode != http.StatusForbidden || !strings.Contains(text, "not the host that the playground listens on") {
			t.Errorf("%s: %s %s", at, answer.Status, text)
		}
	}
}

// TestServe: Serve ends immediately, despite open streams, a waiting request, an
// endless upload and an unused connection.
func TestServe(t *testing.T) {
	t.Parallel()
	memory := make(chan *limiter.Limiter, 1)
	var log bytes.Buffer
	s := newServer(t, func(config *Config) {
		config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		config.Limiter = func(config *limiter.Config) (*limiter.Limiter, error) {
			l := limiter.NewMemory(config)
			memory <- l
			return l, nil
		}
	})
	s.grace = webpagetest.Hang // requests that end later are ended, and logged
	reads := make(chan struct{}, 10)
	s.handler = telling(reads).Handler(s.handler)
	listeners, _, err := webpage.Listen(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listeners...) }()
	at := "http://" + listeners[0].Addr().String()
	unused := must.OK(net.Dial("tcp", listeners[0].Addr().String()))(t)
	defer unused.Close()
	on := webpagetest.Page{URL: at}
	w := on.Watch(t, "k")
	waits := queueTwo(at)
	for range 2 {
		var d decisionEvent
		w.Until(t, "decision", &d)
	}
	upload, more := io.Pipe()
	sent := send(at, upload)
	<-reads
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.Ended()
	if err := <-waits; err == nil {
		t.Error("the waiting request was answered")
	}
	_ = more.Close()
	<-sent // with or without an error
	l := <-memory
	if _, err := l.Check(t.Context(), anyPolicy(limiter.LeakyBucketQueue), "k", 0); !errors.Is(err, limiter.ErrClosed) {
		t.Errorf("the limiter is not closed: %v", err)
	}
	if _, err := http.Get(at); err == nil {
		t.Error("it still answers")
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
}

// send sends an upload, and returns what comes of it.
func send(at string, upload io.Reader) <-chan error {
	sent := make(chan error, 1)
	go func() {
		answer, err := http.Post(at+replayPath(fourAMinute), "", upload)
		if err == nil {
			_ = answer.Body.Close()
		}
		sent <- err
	}()
	return sent
}

// queueTwo sends two requests, of which the second waits, and returns what comes of them.
func queueTwo(at string) <-chan error {
	waits := make(chan error, 1)
	go func() {
		for range 2 {
			answer, err := http.Get(at + "/limited/leaky_bucket_queue?limit=1&period=59s&burst=2&key=k")
			if err != nil {
				waits <- err
				return
			}
			_ = answer.Body.Close()
		}
		waits <- nil
	}()
	return waits
}

// TestServeListenerBreaks: Serve returns the error of a listener.
func TestServeListenerBreaks(t *testing.T) {
	t.Parallel()
	broken := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	_ = broken.Close()
	if err := newServer(t).Serve(t.Context(), broken); err == nil {
		t.Error("no error")
	}
}

// TestServerNoDatabase: requests that need the database report it; the rest works.
func TestServerNoDatabase(t *testing.T) {
	t.Parallel()
	pool := must.OK(pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none"))(t)
	s := newServer(t, func(config *Config) {
		config.Limiter = func(config *limiter.Config) (*limiter.Limiter, error) { return limiter.New(pool, config) }
	})
	on := listen(t, s)
	defer func() {
		if err := s.Close(context.Background()); err == nil || !strings.Contains(err.Error(), `forget "k"`) {
			t.Errorf("Close: %v", err) // the request may have been counted
		}
	}()
	on.ExpectProblem(t, http.MethodPost, "/api/send", `{"key":"k","times":9,"requests":[{"policy":`+three(limiter.GCRA)+`}]}`, 503, "", "gcra", "database unavailable")
	if answer, text := on.Call(t, http.MethodGet, "/limited/gcra?limit=1&period=1h&key=k", ""); answer.StatusCode != 503 || answer.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("/limited/: %s %s", answer.Status, text)
	}
	on.ExpectProblem(t, http.MethodPost, "/api/reset", `{"key":"k"}`, 503, "", "", "database unavailable")
	var p api.Problem
	w := on.Watch(t, "k")
	if name, data := w.Next(t); name != "problem" {
		t.Errorf("%s %s", name, data)
	} else if webpagetest.Strict(t, data, &p); !strings.Contains(p.Message, "database unavailable") {
		t.Errorf("%+v", p)
	}
	w.Stop()
	if answer, text := on.Call(t, http.MethodGet, "/api/setup", ""); answer.StatusCode != 200 {
		t.Errorf("setup: %s %s", answer.Status, text)
	}
}

// deadlines keeps the last read deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
	all  int
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.last = at; d.all++; return nil }

// TestServerBodyRead: a body that was read completely leaves no deadline.
func TestServerBodyRead(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+replayPath(fourAMinute), strings.NewReader(accessLog()))
	if s.ServeHTTP(w, r); w.Code != http.StatusCreated || w.all < 2 || !w.last.IsZero() {
		t.Errorf("%d; after %d deadlines: %v", w.Code, w.all, w.last)
	}
}

// counts is the answer of /api/send.
type counts struct{ Allowed, Delayed, Denied int }

// accessLog returns a log of ten requests by one client within a minute, and one line
// that cannot be read.
func accessLog() string {
	var log strings.Builder
	for i := range 10 {
		fmt.Fprintf(&log, "192.0.2.7 - - [17/May/2026:10:05:%02d +0000] \"GET / HTTP/1.1\" 200 5120\n", i)
	}
	return log.String() + "what is this\n"
}

// fourAMinute is a policy of four requests a minute.
const fourAMinute = `{"algorithm":"fixed_window","limit":4,"period":"1m"}`

// replayPath returns the path and query that replay a log under policies.
func replayPath(policies ...string) string {
	return "/api/replay?policies=" + url.QueryEscape("["+strings.Join(policies, ",")+"]")
}

// telling is an empty reader that sends to the channel when it is read.
type telling chan<- struct{}

// Read sends to the channel and returns io.EOF.
func (c telling) Read([]byte) (int, error) { c <- struct{}{}; return 0, io.EOF }

// Handler returns next. When next begins to read the body of a replay, it sends to the
// channel.
func (c telling) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body := r.Body; r.URL.Path == "/api/replay" {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(c, body), body}
		}
		next.ServeHTTP(w, r)
	})
}
