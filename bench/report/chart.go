package report

import (
	"fmt"
	"slices"
	"strings"
)

// drawn is a contender in the chart, and its name for a reader who has not seen the table.
type drawn struct{ id, name string }

// chartContenders are drawn, in this order; more could not be distinguished.
var chartContenders = []drawn{
	{"batch-relaxed", "pglimit, batching"},
	{"batch-durable", "the same, Durable"},
	{"single-relaxed", "pglimit, one statement each"},
	{"bare-off", "PostgreSQL, counting only"},
	{"lua-rueidis", "Redis, pipelining"},
	{"redis_rate", "Redis, go-redis"},
}

// chartCallers is the setting at which processor time is drawn.
const chartCallers = "512"

const chartTitle = "Decisions per second, and processor time per decision"

// The dimensions of the chart, in its own units.
const (
	chartWidth  = 960
	margin      = 16
	legendStep  = 22
	firstTop    = 76 // of the first panels, below the legend
	headHeight  = 24 // of a panel
	rowHeight   = 22
	barHeight   = 16
	nameWidth   = 108
	totalWidth  = 160 // of the text behind a row's bar
	columnWidth = (chartWidth - 3*margin) / 2
	rowWidth    = columnWidth - nameWidth - totalWidth // of the longest bar
)

// A picture in a page shows no tooltips, but the file opened by itself does, and a screen
// reader reads title and desc.
const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" role="img" aria-labelledby="title desc">
<title id="title">%[3]s</title>
<desc id="desc">%[4]s</desc>
<style>
.back { fill: #ffffff } .text { fill: #1f2328 } .server { fill-opacity: 0.45 }
.grid { stroke: #8c959f; stroke-opacity: 0.3 } .line { fill: none; stroke: #cf4a22; stroke-width: 2 }
.c0 { fill: #0b62c4 } .c1 { fill: #1a7f37 } .c2 { fill: #54aeff } .c3 { fill: #8c959f } .c4 { fill: #cf4a22 } .c5 { fill: #eda145 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } .text { fill: #e6edf3 } .line { stroke: #ff7b72 }
.c0 { fill: #388bfd } .c1 { fill: #3fb950 } .c2 { fill: #a5d6ff } .c3 { fill: #8b949e } .c4 { fill: #ff7b72 } .c5 { fill: #ffc680 }
}
</style>
<rect class="back" width="%[1]d" height="%[2]d"/>
`

// The styles of texts.
const (
	plain   = ""
	heading = ` font-size="14" font-weight="600"`
	small   = ` font-size="11"`
)

func rect(class string, x, y, width, height int) string {
	return fmt.Sprintf(`<rect class="%s" x="%d" y="%d" width="%d" height="%d"/>`, class, x, y, width, height)
}

func text(x, y int, style, content string) string {
	return fmt.Sprintf(`<text class="text" x="%d" y="%d"%s>%s</text>`, x, y, style, content)
}

// Chart draws throughput by callers and contender as bars, in a column for evenly used keys
// and one for a hot key, each with a separate scale, and below them processor time per
// decision, the client's and the server's. Colours and background follow the reader's light
// or dark scheme. Every bar has its figure as text.
func (r *Run) Chart() string {
	var b strings.Builder
	const columns = 3
	for i, c := range chartContenders {
		x, y := margin+i%columns*(chartWidth-2*margin)/columns, 14+i/columns*legendStep
		b.WriteString(rect(fmt.Sprint("c", i), x, y, 12, 12) + text(x+18, y+10, plain, c.id+": "+c.name) + "\n")
	}
	height := max(r.column(&b, Even, margin), r.column(&b, Hot, margin+columnWidth+margin))
	return fmt.Sprintf(chartHead, chartWidth, height+margin, chartTitle, "The bars have their figures as text.") + b.String() + "</svg>\n"
}

// column draws the panels of a section and returns where they end.
func (r *Run) column(b *strings.Builder, section string, left int) (y int) {
	title := section
	for _, s := range r.Sections {
		if s.Name == section {
			title = s.Title
		}
	}
	var settings []string
	for _, c := range r.Cells {
		if c.Section == section && slices.ContainsFunc(chartContenders, func(d drawn) bool { return d.id == c.Contender }) {
			settings = add(settings, c.Setting)
		}
	}
	y = firstTop
	b.WriteString(text(left, y, heading, title) + "\n")
	perSecond := func(v []float64) string { return short(v[0]) }
	longest := 0.0
	for _, s := range settings {
		longest = max(longest, r.longest(section, s, PerSecond))
	}
	for _, s := range settings {
		y = r.panel(b, "decisions per second, "+s+" callers", section, s, left, y, longest, perSecond, PerSecond)
	}
	micros := func(v float64) string { return trim(v / microsecond) }
	return r.panel(b, "processor time per decision, client + server, "+chartCallers+" callers", section, chartCallers, left, y, r.longest(section, chartCallers, Client, Server),
		func(v []float64) string {
			return micros(v[0]+v[1]) + " µs (" + micros(v[0]) + " + " + micros(v[1]) + ")"
		}, Client, Server)
}

// medians returns a contender's figures; nothing if it was not measured or one is unknown.
func (r *Run) medians(section, contender, setting string, figures ...Figure) (list []float64) {
	c := r.cell(section, contender, setting)
	for _, f := range figures {
		if c == nil || c.each(f) == nil {
			return nil
		}
		list = append(list, Median(c.each(f)))
	}
	return list
}

// longest returns the largest sum of the figures of a contender.
func (r *Run) longest(section, setting string, figures ...Figure) (most float64) {
	for _, d := range chartContenders {
		sum := 0.0
		for _, v := range r.medians(section, d.id, setting, figures...) {
			sum += v
		}
		most = max(most, sum)
	}
	return most
}

// panel draws a bar of the figures for each contender, and returns where it ends.
func (r *Run) panel(b *strings.Builder, title, section, setting string, left, y int, longest float64, total func([]float64) string, figures ...Figure) int {
	y += headHeight
	b.WriteString(text(left, y, plain, title) + "\n")
	y += rowHeight - barHeight
	for i, d := range chartContenders {
		if r.cell(section, d.id, setting) == nil {
			continue
		}
		x, bars, label := left+nameWidth, "", "unknown"
		if values := r.medians(section, d.id, setting, figures...); values != nil {
			label = total(values)
			for n, v := range values {
				width := max(1, int(v/longest*rowWidth))
				bars += rect(fmt.Sprint("c", i, []string{"", " server"}[n]), x, y, width, barHeight)
				x += width
			}
		}
		fmt.Fprintf(b, `<g><title>%s, %s: %s</title>%s%s%s</g>`+"\n", d.id, title, label, text(left, y+12, plain, d.id), bars, text(x+6, y+12, small, label))
		y += rowHeight
	}
	return y
}
