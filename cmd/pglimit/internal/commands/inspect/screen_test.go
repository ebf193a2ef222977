package inspect

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/inspect"
)

// drawn collects what is written to a screen. take empties it.
type drawn struct {
	mu   sync.Mutex
	text []byte
}

func (d *drawn) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text = append(d.text, p...)
	return len(p), nil
}

func (d *drawn) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := string(d.text)
	d.text = nil
	return text
}

// TestLive: the screen is entered, drawn every interval and restored. A database that does
// not answer leaves the last keys on it.
func TestLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out drawn
		asked := 0
		l := live{
			screen: screen{&out, func() (int, int) { return 80, 5 }},
			ask: func(context.Context) ([]inspect.Key, error) {
				asked++
				if asked == 2 {
					return nil, errors.New("away\x1b[2J")
				}
				return []inspect.Key{{Policy: "p", Key: "second"}, {Policy: "p", Key: "third"}, {Policy: "p", Key: "beyond the screen"}}, nil
			},
			every: time.Second, title: "top", now: time.Now,
		}
		ended := make(chan error)
		go func() { ended <- l.run(ctx, []inspect.Key{{Policy: "p", Key: "first"}}) }()
		frame := func(after time.Duration) string {
			time.Sleep(after)
			synctest.Wait()
			return out.take()
		}
		if f := frame(0); !strings.HasPrefix(f, enterScreen+homeCursor) || !strings.Contains(f, "first") || strings.Count(f, "\r\n") != 3 {
			t.Errorf("the first frame: %q", f)
		}
		if f := frame(time.Second); strings.Contains(f, "first") || !strings.Contains(f, "third") || strings.Contains(f, "beyond") || strings.Contains(f, enterScreen) {
			t.Errorf("the second frame: %q", f)
		}
		if f := frame(time.Second); !strings.Contains(f, "not refreshed: ") || !strings.Contains(f, `away\x1b[2J`) || !strings.Contains(f, "third") {
			t.Errorf("without the database: %q", f)
		}
		if f := frame(time.Second); strings.Contains(f, "not refreshed") || !strings.Contains(f, "second") {
			t.Errorf("with it again: %q", f)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Ctrl-C: %v", err)
		}
		if f := out.take(); f != leaveScreen {
			t.Errorf("at the end: %q", f)
		}
	})
}

// TestLiveSlow: a question that takes 10 s is asked again 40 s after its answer.
func TestLiveSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 130*time.Second)
		defer cancel()
		asked := 0
		l := live{screen: screen{io.Discard, func() (int, int) { return 80, 24 }}, every: time.Second, now: time.Now,
			ask: func(context.Context) ([]inspect.Key, error) {
				asked++
				time.Sleep(10 * time.Second)
				return nil, nil
			}}
		if err := l.run(ctx, nil); err != nil || asked != 3 { // at 1, 51 and 101 s
			t.Errorf("asked %d times, %v", asked, err)
		}
	})
}

// TestLiveClosed: a terminal that is gone ends it, with the error.
func TestLiveClosed(t *testing.T) {
	t.Parallel()
	gone, _ := io.Pipe()
	gone.Close()
	reader, w := io.Pipe()
	reader.Close()
	l := live{screen: screen{w, func() (int, int) { return 80, 24 }}, every: time.Hour, now: time.Now}
	if err := l.run(t.Context(), nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}
