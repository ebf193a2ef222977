// Package sitetest sends requests to the playground's handlers in tests, and checks
// the answers.
package sitetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/sitetest"
	"github.com/pglimit/pglimit/limiter"
)

// Hang is the longest wait of a test for an answer or an event.
const Hang = sitetest.Hang

// Strict decodes JSON into into, which must have all its fields.
var Strict = sitetest.Strict

// Site is a handler that answers on the network, with streams.
type Site struct{ sitetest.Site }

// New serves a handler until the test ends. Streams must end before: after New, call
// t.Cleanup with a function that ends them.
func New(t *testing.T, h http.Handler) Site {
	t.Helper()
	return Site{sitetest.New(t, h)}
}

// At returns the site at a URL.
func At(url string) Site { return Site{sitetest.Site{URL: url}} }

// Counts is the answer of /api/send.
type Counts struct{ Allowed, Delayed, Denied int }

// Watcher reads a stream of events.
type Watcher struct {
	lines *bufio.Scanner
	// Stop ends the stream.
	Stop context.CancelFunc
}

// Watch opens a stream and reads its first event.
func (s Site) Watch(t *testing.T, key string) *Watcher {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), Hang)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/events?key="+key, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %v", answer.Status, answer.Header)
	}
	w := &Watcher{bufio.NewScanner(answer.Body), stop}
	var hello struct{ At float64 }
	if name, data := w.Next(t); name != "hello" {
		t.Fatalf("%s %s, want hello first", name, data)
	} else if Strict(t, data, &hello); hello.At < 1e12 {
		t.Errorf("hello at %v", hello.At)
	}
	return w
}

// Next reads an event. The test's deadline bounds the wait.
func (w *Watcher) Next(t *testing.T) (name, data string) {
	t.Helper()
	for w.lines.Scan() {
		switch field, value, _ := strings.Cut(w.lines.Text(), ": "); field {
		case "event":
			name = value
		case "data":
			data = value
		case "":
			if name != "" {
				return name, data
			}
		}
	}
	t.Fatalf("the stream ended: %v", w.lines.Err())
	return "", ""
}

// Until reads events up to one with the name, and decodes that.
func (w *Watcher) Until(t *testing.T, name string, into any) {
	t.Helper()
	for {
		got, data := w.Next(t)
		if got == name {
			Strict(t, data, into)
			return
		}
	}
}

// Ended reads to the end of the stream and returns how many events there were.
func (w *Watcher) Ended() (events int) {
	for w.lines.Scan() {
		if strings.HasPrefix(w.lines.Text(), "event: ") {
			events++
		}
	}
	return events
}

// Memory returns a limiter without a database.
func Memory(config *limiter.Config) (*limiter.Limiter, error) { return limiter.NewMemory(config), nil }

// AccessLog returns a log of ten requests by one client within a minute, and one line
// that cannot be read.
func AccessLog() string {
	var log strings.Builder
	for i := range 10 {
		fmt.Fprintf(&log, "192.0.2.7 - - [17/May/2026:10:05:%02d +0000] \"GET / HTTP/1.1\" 200 5120\n", i)
	}
	return log.String() + "what is this\n"
}

// FourAMinute is a policy of four requests a minute.
const FourAMinute = `{"algorithm":"fixed_window","limit":4,"period":"1m"}`

// ReplayPath returns the path and query that replay a log under policies.
func ReplayPath(policies ...string) string {
	return "/api/replay?policies=" + url.QueryEscape("["+strings.Join(policies, ",")+"]")
}

// Telling is an empty reader that sends to the channel when it is read.
type Telling chan<- struct{}

// Read sends to the channel and returns io.EOF.
func (c Telling) Read([]byte) (int, error) { c <- struct{}{}; return 0, io.EOF }

// Handler returns next. When next begins to read the body of a replay, it sends to the
// channel.
func (c Telling) Handler(next http.Handler) http.Handler {
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
