package inspect

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/rivo/uniseg"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/replay"
)

// column is a column of a table of keys. width is its width on a screen; 0 for texts,
// which share what is left.
type column struct {
	header string
	width  int
	cell   func(k inspect.Key, at func(*time.Time) string) string
}

// The columns. A key is hostile input: clients can often choose it.
var (
	policyColumn    = column{"POLICY", 0, func(k inspect.Key, _ func(*time.Time) string) string { return replay.Shown(k.Policy) }}
	algorithmColumn = column{"ALGORITHM", 0, func(k inspect.Key, _ func(*time.Time) string) string { return string(k.Algorithm) }}
	kindColumn      = column{"KIND", 7, func(k inspect.Key, _ func(*time.Time) string) string { return kinds[k.Algorithm] }}
	keyColumn       = column{"KEY", 0, func(k inspect.Key, _ func(*time.Time) string) string { return shownKey(k.Key) }}
	usedColumn      = column{"USED", 5, func(k inspect.Key, _ func(*time.Time) string) string { return percent(k.Share) }}
	levelColumn     = column{"LEVEL/BURST", 13, func(k inspect.Key, _ func(*time.Time) string) string { return units(k.Level) + "/" + units(k.Burst) }}
	remainingColumn = column{"REMAINING", 9, func(k inspect.Key, _ func(*time.Time) string) string { return units(k.Remaining) }}
	blockedColumn   = column{"BLOCKED UNTIL", 13, func(k inspect.Key, at func(*time.Time) string) string { return at(k.BlockedUntil) }}
	denialsColumn   = column{"DENIALS", 7, func(k inspect.Key, _ func(*time.Time) string) string { return fmt.Sprint(k.Denials) }}
	deniedColumn    = column{"LAST DENIED", 11, func(k inspect.Key, at func(*time.Time) string) string { return at(k.LastDeniedAt) }}
)

var allColumns = []column{policyColumn, algorithmColumn, keyColumn, usedColumn, levelColumn, remainingColumn, blockedColumn, denialsColumn, deniedColumn}

// columnsFor returns the columns for a screen of that width.
func columnsFor(width int) []column {
	switch {
	case width >= 120:
		return allColumns
	case width >= 100:
		return []column{policyColumn, kindColumn, keyColumn, usedColumn, levelColumn, remainingColumn, blockedColumn, denialsColumn, deniedColumn}
	case width >= 70:
		return []column{policyColumn, kindColumn, keyColumn, usedColumn, levelColumn, blockedColumn, denialsColumn}
	}
	return []column{policyColumn, keyColumn, usedColumn}
}

// kinds are short names of the algorithms, for narrow screens.
var kinds = map[algorithm.Name]string{
	algorithm.LeakyBucket: "leaky", algorithm.LeakyBucketQueue: "queue", algorithm.TokenBucket: "token", algorithm.GCRA: "gcra",
	algorithm.FixedWindow: "fixed", algorithm.SlidingWindowCounter: "counter", algorithm.SlidingWindowLog: "log",
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
	return replay.Shown(key)
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
	case math.Abs(*v) >= 1e9:
		return fmt.Sprintf("%.3g", *v)
	case math.Abs(*v) >= 100 || *v == math.Trunc(*v):
		return fmt.Sprintf("%.0f", *v)
	}
	return human.Units(math.Round(*v*100) / 100)
}

// long returns a time with its day.
func long(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
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

// fit cuts or pads a text to a width on the screen.
func fit(text string, width int) string {
	if n := uniseg.StringWidth(text); n <= width {
		return text + strings.Repeat(" ", width-n)
	}
	var b strings.Builder
	left := width - 1 // for the ellipsis
	state := -1
	for rest := text; rest != ""; {
		var cluster string
		var w int
		cluster, rest, w, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if w > left {
			break
		}
		b.WriteString(cluster)
		left -= w
	}
	return b.String() + "…" + strings.Repeat(" ", max(0, left))
}

// lines renders keys as lines of exactly width, with a header.
func lines(keys []inspect.Key, width int, at func(*time.Time) string) []string {
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
			cells[n] = fit(cells[n], widths[n])
		}
		return fit(strings.Join(cells, " "), width)
	}
	all := []string{render(headers(columns))}
	for _, k := range keys {
		all = append(all, render(cells(columns, k, at)))
	}
	return all
}
