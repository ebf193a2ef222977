package inspect

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/replay"
)

// screen is a terminal. size returns its columns and rows.
type screen struct {
	out  io.Writer
	size func() (columns, rows int)
}

// newScreen returns the screen of a terminal; ok is false if w is none.
func newScreen(w io.Writer) (s screen, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !cli.OnTerminal(f) {
		return s, false
	}
	return screen{f, func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns < 1 || rows < 1 {
			return 80, 24
		}
		return columns, rows
	}}, true
}

// Sequences that all terminals of today know: the alternate screen keeps what was on it.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // and hide the cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// draw replaces what is on the screen. Lines that do not fit are left out.
func (s screen) draw(lines []string, rows int) error {
	if len(lines) > rows {
		lines = lines[:rows]
	}
	_, err := io.WriteString(s.out, homeCursor+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow)
	return err
}

// live is the refreshing top.
type live struct {
	screen screen
	ask    func(context.Context) ([]inspect.Key, error)
	every  time.Duration
	title  string
	now    func() time.Time
}

// run shows keys, asks for others every l.every, and restores the screen when ctx ends,
// which is the normal end. While the database does not answer, the last keys stay. A slow
// question is asked less often, so that it takes a fifth of the database's time at most.
func (l live) run(ctx context.Context, keys []inspect.Key) (err error) {
	if _, err := io.WriteString(l.screen.out, enterScreen); err != nil {
		return err
	}
	defer func() {
		if _, e := io.WriteString(l.screen.out, leaveScreen); err == nil {
			err = e
		}
	}()
	var failure error
	for pause := l.every; ; {
		if err := l.show(keys, failure); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		var next []inspect.Key
		asked := time.Now()
		if next, failure = l.ask(ctx); failure == nil {
			keys = next
		}
		pause = max(l.every, 4*time.Since(asked))
		if ctx.Err() != nil {
			return nil
		}
	}
}

// show draws keys, below a line with the time and an error.
func (l live) show(keys []inspect.Key, failure error) error {
	columns, rows := l.screen.size()
	columns = max(20, columns-1) // clearLine would clear a character in the last column
	now := l.now()
	state := fmt.Sprintf("%s  %s, every %v; Ctrl-C ends it", now.Format(time.TimeOnly), l.title, l.every)
	if failure != nil {
		state = now.Format(time.TimeOnly) + "  not refreshed: " + replay.Shown(failure.Error())
	}
	all := append([]string{fit(state, columns), ""}, lines(keys, columns, short(now))...)
	if len(keys) == 0 {
		all = append(all, fit("no keys", columns))
	}
	return l.screen.draw(all, rows)
}
