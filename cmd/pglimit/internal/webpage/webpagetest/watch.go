package webpagetest

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
)

// Watcher reads a stream of events.
type Watcher struct {
	lines *bufio.Scanner
	// Stop ends the stream.
	Stop context.CancelFunc
}

// Watch opens a stream and reads its first event.
func (s Page) Watch(t *testing.T, key string) *Watcher {
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
