package cli

import (
	"slices"
	"strings"

	"github.com/rivo/uniseg"
)

// Table has the cells of a table for people.
type Table struct {
	Header []string
	Rows   [][]string
}

// Add adds a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// leastText is the least width of a text that a table cuts.
const leastText = 20

// Text returns t in columns. It leaves out those that have nothing to tell in any row: "", "-"
// or "0". If it is wider than width, the columns of keys, names and notes are cut, the widest
// first, but not below 20 characters. A width of 0 cuts none.
func (t *Table) Text(width int) string {
	var columns, widths []int
	total := -2
	for c, header := range t.Header {
		widest, empty := uniseg.StringWidth(header), true
		for _, row := range t.Rows {
			widest = max(widest, uniseg.StringWidth(row[c]))
			empty = empty && slices.Contains([]string{"", "-", "0"}, row[c])
		}
		if !empty {
			columns, widths, total = append(columns, c), append(widths, widest), total+widest+2
		}
	}
	for ; width > 0 && total > width; total-- {
		widest := -1
		for i, c := range columns {
			cuttable := slices.Contains([]string{"KEY", "POLICY", "NAME", "NOTE"}, t.Header[c])
			if cuttable && widths[i] > leastText && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	var text strings.Builder
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		var line strings.Builder
		for i, c := range columns {
			if i > 0 {
				line.WriteString("  ")
			}
			line.WriteString(Fit(row[c], widths[i]))
		}
		text.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return text.String()
}

// Fit cuts or pads a text to a width on the screen.
func Fit(text string, width int) string {
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
