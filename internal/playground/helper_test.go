package playground

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// newServer makes a Server that counts in memory.
func newServer(t *testing.T, changes ...func(*Config)) *Server {
	t.Helper()
	config := Config{
		Limiter: func(config *limiter.Config) (*limiter.Limiter, error) { return limiter.NewMemory(config), nil },
		Version: "v1.2.3", Database: "memory", Logger: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hang bounds what waits for an answer or an event, against hanging for ever.
const hang = 30 * time.Second

// site is a Server that listens.
type site struct {
	*Server
	url string
}

func newSite(t *testing.T, changes ...func(*Config)) *site {
	t.Helper()
	s := newServer(t, changes...)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return listen(t, s)
}

func listen(t *testing.T, s *Server) *site {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		s.hub.close() // streams keep a test server from closing
		server.Close()
	})
	return &site{s, server.URL}
}

// call sends a request and returns the answer with its body read.
func (s *site) call(t *testing.T, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

// post sends JSON and reads the answer into a value, which has to know its fields.
func (s *site) post(t *testing.T, path, body string, into any) {
	t.Helper()
	answer, text := s.call(t, http.MethodPost, path, body)
	if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s %s: %s %s", path, body, answer.Status, text)
	}
	strict(t, text, into)
}

func strict(t *testing.T, text string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// counts is the answer of /api/send.
type counts struct{ Allowed, Delayed, Denied int }

// watcher reads a stream of events.
type watcher struct {
	lines *bufio.Scanner
	stop  context.CancelFunc
}

// watch opens a stream and reads its hello.
func (s *site) watch(t *testing.T, key string) *watcher {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), hang)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/events?key="+key, nil)
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
	w := &watcher{bufio.NewScanner(answer.Body), stop}
	var hello struct{ At float64 }
	if name, data := w.next(t); name != "hello" {
		t.Fatalf("%s %s, want hello first", name, data)
	} else if strict(t, data, &hello); hello.At < 1e12 {
		t.Errorf("hello at %v", hello.At)
	}
	return w
}

// next reads an event. The test's deadline bounds the wait.
func (w *watcher) next(t *testing.T) (name, data string) {
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

// until reads events until one has the name, and reads that.
func (w *watcher) until(t *testing.T, name string, into any) {
	t.Helper()
	for {
		got, data := w.next(t)
		if got == name {
			strict(t, data, into)
			return
		}
	}
}

// ended reads to the end of the stream and returns how many events there were.
func (w *watcher) ended() (events int) {
	for w.lines.Scan() {
		if strings.HasPrefix(w.lines.Text(), "event: ") {
			events++
		}
	}
	return events
}

// stage is a ResponseWriter within the test's own process, for streams under a
// clock of the test's own.
type stage struct {
	header http.Header
	status int
	text   chan string // what was flushed
	behind bytes.Buffer
}

func newStage() *stage { return &stage{header: http.Header{}, text: make(chan string, 1000)} }

func (s *stage) Header() http.Header         { return s.header }
func (s *stage) WriteHeader(status int)      { s.status = status }
func (s *stage) Write(p []byte) (int, error) { return s.behind.Write(p) }
func (s *stage) Flush()                      { s.text <- s.behind.String(); s.behind.Reset() }
