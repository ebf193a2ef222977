package commands

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/rivo/uniseg"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/algorithm"
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
			ask: func(context.Context) (inspect.Top, error) {
				asked++
				if asked == 2 {
					return inspect.Top{}, errors.New("away\x1b[2J")
				}
				return inspect.Top{Keys: []inspect.Key{{Policy: "p", Key: "second"}, {Policy: "p", Key: "third"}, {Policy: "p", Key: "beyond the screen"}}}, nil
			},
			every: time.Second, now: time.Now,
		}
		ended := make(chan error)
		go func() { ended <- l.run(ctx, inspect.Top{Keys: []inspect.Key{{Policy: "p", Key: "first"}}}) }()
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
			ask: func(context.Context) (inspect.Top, error) {
				asked++
				time.Sleep(10 * time.Second)
				return inspect.Top{}, nil
			}}
		if err := l.run(ctx, inspect.Top{}); err != nil || asked != 3 { // at 1, 51 and 101 s
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
	if err := l.run(t.Context(), inspect.Top{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

func number(v float64) *float64 { return &v }

// hostile are keys that clients may choose.
var hostile = []string{
	"", "alice", strings.Repeat("x", 1024), "\x1b[2J\x1b[31mred", "two\r\nlines\tand\btabs", "\u202egnp.exe", "\u200bzero", "日本語のキーはとても長いので切られます",
	"👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦", "e\u0301\u0301\u0301", strings.Repeat("\u0301", 300), "\x9b31m", "\U0010FFFF", `\`, "%s%n",
}

// TestLinesFit: on a screen of any width each line has that width, whatever the keys, and no
// character that a terminal obeys.
func TestLinesFit(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := now.Add(1000 * time.Hour)
	var keys []inspect.Key
	for n, key := range hostile {
		keys = append(keys, inspect.Key{Policy: strings.Repeat("policy", n), Algorithm: algorithm.Names[n%7], Key: key, Level: number(12345678.9), Burst: number(1 << 53),
			Share: number(float64(n) * 1000), Remaining: number(1e-9), BlockedUntil: &later, UpdatedAt: &now, Denials: 123456789, RecentDenials: 123456789, LastDeniedAt: &now, Status: inspect.Blocked})
	}
	keys = append(keys, inspect.Key{Policy: "p", Algorithm: "gcra", Key: "k"})
	for _, width := range []int{20, 40, 69, 70, 79, 80, 99, 100, 119, 120, 139, 140, 200} {
		all := keyLines(keys, width, short(now))
		if len(all) != len(keys)+1 {
			t.Fatalf("width %d: %d lines", width, len(all))
		}
		for _, line := range all {
			if n := uniseg.StringWidth(line); n != width {
				t.Errorf("width %d: a line has %d: %q", width, n, line)
			}
			if strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
				t.Errorf("width %d: a character that does not print: %q", width, line)
			}
		}
	}
	const want = "POLICY KEY STATUS DENIED PER MIN USED LEVEL/BURST"
	if got := strings.TrimRight(keyLines(nil, 79, short(now))[0], " "); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("at 79 columns:\n%s", got)
	}
}

func TestCells(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got, want string
	}{
		{percent(nil), "-"}, {percent(number(0)), "0%"}, {percent(number(0.999)), "99%"}, {percent(number(1)), "100%"}, {percent(number(0.29)), "29%"}, {percent(number(2.5)), "250%"}, {percent(number(1e9)), ">9999%"},
		{units(nil), "-"}, {units(number(0)), "0"}, {units(number(9.994)), "9.99"}, {units(number(123.4)), "123"}, {units(number(1e9)), "1000000000"}, {units(number(0.001)), "0"},
		{shownKey(""), "(others)"}, {shownKey("a\nb"), `"a\nb"`},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	soon, late := now.Add(time.Hour), now.Add(48*time.Hour)
	if at := short(now); at(nil) != "-" || at(&soon) != "04:04:05" || at(&late) != "2026-01-04" {
		t.Errorf("times: %s, %s, %s", at(nil), at(&soon), at(&late))
	}
}

// TestKinds: every algorithm has a short name that its column has room for.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, a := range algorithm.All() {
		if kind := kinds[a]; kind == "" || len(kind) > kindColumn.width {
			t.Errorf("%s: %q", a, kind)
		}
	}
}
