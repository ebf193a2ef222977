package policies

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func newLog() *log { return &log{} }

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// expect expects one line, with all parts, and forgets it.
func (l *log) expect(t *testing.T, parts ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	l.text.Reset()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("not one line: %s", text)
	}
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("the log lacks %q: %s", p, text)
		}
	}
}

// none expects that nothing was logged.
func (l *log) none(t *testing.T) {
	t.Helper()
	if text := l.String(); text != "" {
		t.Errorf("logged: %s", text)
	}
}
