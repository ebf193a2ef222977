package commands

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
)

// screen is a terminal. size returns its columns and rows.
type screen struct {
	out  io.Writer
	size func() (columns, rows int)
}

// widthOf returns the columns of the terminal that w is, or 0 if it is none: what a program or
// a file gets is never cut.
func widthOf(w io.Writer) int {
	s, ok := newScreen(w)
	if !ok {
		return 0
	}
	columns, _ := s.size()
	return columns
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
	ask    func(context.Context) (inspect.Top, error)
	every  time.Duration
	where  string // what the keys are of
	now    func() time.Time
}

// run shows top, asks for another every l.every, and restores the screen when ctx ends,
// which is the normal end. While the database does not answer, the last one stays. A slow
// question is asked less often, so that it takes a fifth of the database's time at most.
func (l live) run(ctx context.Context, top inspect.Top) (err error) {
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
		if err := l.show(top, failure); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		var next inspect.Top
		asked := time.Now()
		if next, failure = l.ask(ctx); failure == nil {
			top = next
		}
		pause = max(l.every, 4*time.Since(asked))
		if ctx.Err() != nil {
			return nil
		}
	}
}

// show draws top, below a line with the time and an error.
func (l live) show(top inspect.Top, failure error) error {
	columns, rows := l.screen.size()
	columns = max(20, columns-1) // clearLine would clear a character in the last column
	now := l.now()
	state := fmt.Sprintf("%s  pglimit top by %s%s, every %s; Ctrl-C ends it", now.Format(time.TimeOnly), top.By, l.where, duration.Format(l.every))
	if failure != nil {
		state = now.Format(time.TimeOnly) + "  not refreshed: " + printable.Shown(failure.Error())
	}
	all := append([]string{cli.Fit(state, columns), ""}, keyLines(top.Keys, columns, short(now))...)
	if len(top.Keys) == 0 {
		all = append(all, cli.Fit("no keys", columns))
	}
	return l.screen.draw(all, rows)
}

// column is a column of a table of keys. width is its width on a screen; 0 for texts,
// which share what is left.
type column struct {
	header string
	width  int
	cell   func(k inspect.Key, at func(*time.Time) string) string
}

// The columns. A key is hostile input: clients can often choose it.
var (
	policyColumn    = column{"POLICY", 0, func(k inspect.Key, _ func(*time.Time) string) string { return printable.Shown(k.Policy) }}
	algorithmColumn = column{"ALGORITHM", 0, func(k inspect.Key, _ func(*time.Time) string) string { return string(k.Algorithm) }}
	kindColumn      = column{"KIND", 7, func(k inspect.Key, _ func(*time.Time) string) string { return kinds[k.Algorithm] }}
	keyColumn       = column{"KEY", 0, func(k inspect.Key, _ func(*time.Time) string) string { return shownKey(k.Key) }}
	usedColumn      = column{"USED", 5, func(k inspect.Key, _ func(*time.Time) string) string { return percent(k.Share) }}
	levelColumn     = column{"LEVEL/BURST", 13, func(k inspect.Key, _ func(*time.Time) string) string { return units(k.Level) + "/" + units(k.Burst) }}
	blockedColumn   = column{"BLOCKED", 10, blockedText}
	statusColumn    = column{"STATUS", 7, func(k inspect.Key, _ func(*time.Time) string) string { return string(k.Status) }}
	recentColumn    = column{"DENIED", 6, func(k inspect.Key, _ func(*time.Time) string) string { return fmt.Sprint(k.RecentDenials) }}
	rateColumn      = column{"PER MIN", 7, func(k inspect.Key, _ func(*time.Time) string) string { return units(&k.DenialsPerMinute) }}
	denialsColumn   = column{"IN 24H", 6, func(k inspect.Key, _ func(*time.Time) string) string { return fmt.Sprint(k.Denials) }}
	deniedColumn    = column{"LAST DENIED", 11, func(k inspect.Key, at func(*time.Time) string) string { return at(k.LastDeniedAt) }}
	requestColumn   = column{"LAST REQUEST", 12, func(k inspect.Key, at func(*time.Time) string) string { return at(k.LastRequestAt) }}
)

var allColumns = []column{policyColumn, algorithmColumn, keyColumn, statusColumn, recentColumn, rateColumn, deniedColumn, usedColumn, levelColumn, blockedColumn, requestColumn, denialsColumn}

// printedColumns are those of a table that is printed once. Keys of 24 characters leave it
// within 80 columns, unless some are blocked and some were denied.
var printedColumns = []column{policyColumn, kindColumn, keyColumn, statusColumn, recentColumn, rateColumn, usedColumn, levelColumn, blockedColumn}

// foundColumns are those of one key.
var foundColumns = []column{policyColumn, algorithmColumn, statusColumn, usedColumn, levelColumn, blockedColumn}

// keyTable returns keys as a table.
func keyTable(columns []column, keys []inspect.Key) *cli.Table {
	t, at := &cli.Table{Header: headers(columns)}, short(time.Now())
	for _, k := range keys {
		t.Add(cells(columns, k, at)...)
	}
	return t
}

// columnsFor returns the columns for a screen of that width.
func columnsFor(width int) []column {
	switch {
	case width >= 140:
		return allColumns
	case width >= 100:
		return []column{policyColumn, kindColumn, keyColumn, statusColumn, recentColumn, rateColumn, deniedColumn, usedColumn, levelColumn, blockedColumn}
	case width >= 70:
		return []column{policyColumn, keyColumn, statusColumn, recentColumn, rateColumn, usedColumn, levelColumn}
	}
	return []column{policyColumn, keyColumn, statusColumn}
}

// kinds are short names of the algorithms, for narrow screens.
var kinds = map[algorithm.Name]string{
	algorithm.LeakyBucket: "leaky", algorithm.LeakyBucketQueue: "queue", algorithm.TokenBucket: "token", algorithm.GCRA: "gcra",
	algorithm.FixedWindow: "fixed", algorithm.SlidingWindowCounter: "counter", algorithm.SlidingWindowLog: "log",
	algorithm.Attempts: "attempt", algorithm.Concurrency: "slots", algorithm.Balance: "balance",
}

func headers(columns []column) (all []string) {
	for _, c := range columns {
		all = append(all, c.header)
	}
	return all
}

func cells(columns []column, k inspect.Key, at func(*time.Time) string) (all []string) {
	for _, c := range columns {
		all = append(all, c.cell(k, at))
	}
	return all
}

// shownKey returns a key for display. The key "" stands for those that had no place among
// the denials.
func shownKey(key string) string {
	if key == "" {
		return "(others)"
	}
	return printable.Shown(key)
}

// blockedText returns the end of a key's block, of the override if there is one.
func blockedText(k inspect.Key, at func(*time.Time) string) string {
	switch by := k.BlockedBy; {
	case by == nil:
		return at(k.BlockedUntil)
	case by.Until == nil:
		return "no end"
	default:
		return at(by.Until)
	}
}

func percent(share *float64) string {
	switch {
	case share == nil:
		return "-"
	case *share >= 99.995:
		return ">9999%"
	}
	return fmt.Sprintf("%d%%", int(math.Floor(*share*100+1e-9)))
}

// units returns v with the digits that matter to people.
func units(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case math.Abs(*v) >= 100 || *v == math.Trunc(*v):
		return fmt.Sprintf("%.0f", *v)
	}
	return cli.Units(math.Round(*v*100) / 100)
}

// short returns a function that returns the time of day within a day of now, else the day.
func short(now time.Time) func(*time.Time) string {
	return func(t *time.Time) string {
		switch {
		case t == nil:
			return "-"
		case t.Sub(now).Abs() < 20*time.Hour:
			return t.In(now.Location()).Format(time.TimeOnly)
		}
		return t.In(now.Location()).Format(time.DateOnly)
	}
}

// keyLines renders keys as lines of exactly width, with a header.
func keyLines(keys []inspect.Key, width int, at func(*time.Time) string) []string {
	columns := columnsFor(width)
	left, texts := width-len(columns)+1, 0
	for _, c := range columns {
		left -= c.width
		if c.width == 0 {
			texts++
		}
	}
	widths := make([]int, len(columns))
	for n, c := range columns {
		switch {
		case c.width > 0:
			widths[n] = c.width
		case c.header == "KEY":
			widths[n] = max(3, left-(texts-1)*(left/4))
		default:
			widths[n] = max(3, left/4)
		}
	}
	render := func(cells []string) string {
		for n := range cells {
			cells[n] = cli.Fit(cells[n], widths[n])
		}
		return cli.Fit(strings.Join(cells, " "), width)
	}
	all := []string{render(headers(columns))}
	for _, k := range keys {
		all = append(all, render(cells(columns, k, at)))
	}
	return all
}
