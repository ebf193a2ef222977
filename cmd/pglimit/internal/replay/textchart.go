package replay

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// levels fill an eighth more of a character each.
var levels = []rune(" ▁▂▃▄▅▆▇█")

// TextChart returns a bar chart of counts, one for each part of r, as lines of text. Each
// line is a step of the axis of counts, and each part one or more columns.
func (r *Report) TextChart(counts []int) string {
	axes := newAxes(r.parts, max(1, slices.Max(counts)))
	step := axes.top / (len(axes.Lines) - 1)
	width := max(1, maxParts/r.parts.Count)
	margin := utf8.RuneCountInString(axes.Lines[len(axes.Lines)-1].Label)
	var text strings.Builder
	for i := len(axes.Lines) - 1; i > 0; i-- {
		bars := ""
		for _, n := range counts {
			bars += strings.Repeat(string(level(n-(i-1)*step, step)), width)
		}
		fmt.Fprintf(&text, "%s\n", strings.TrimRight(fmt.Sprintf("%*s ┤%s", margin, axes.Lines[i].Label, bars), " "))
	}
	axis, labels := axes.timeLines(width)
	fmt.Fprintf(&text, "%*s ┼%s\n%s\n", margin, "0", axis, strings.TrimRight(strings.Repeat(" ", margin+2)+labels, " "))
	return text.String()
}

// level returns the character for n of step, rounded up: one request is visible.
func level(n, step int) rune {
	return levels[(8*max(0, min(n, step))+step-1)/step]
}

// timeLines returns the axis of time with its ticks, and the labels that have room below them,
// for parts of that width.
func (a Axes) timeLines(width int) (axis, labels string) {
	line := []rune(strings.Repeat("─", width*a.parts.Count))
	for _, t := range a.Ticks {
		column := a.parts.Index(t.at) * width
		if column >= len(line) {
			break
		}
		line[column] = '┬'
		if gap := column - utf8.RuneCountInString(labels); gap > 0 || labels == "" {
			labels += strings.Repeat(" ", gap) + t.Label
		}
	}
	return string(line), labels
}
