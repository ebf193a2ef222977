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
	firstTop    = 76 // of the first panel, below the legend
	barsHeight  = 170
	panelStep   = 256
	barWidth    = 34
	rowHeight   = 25
	rowsTop     = 54 // of the first row, in its panel
	nameWidth   = 108
	totalWidth  = 160 // of the text behind a row's bar
	columnWidth = (chartWidth - 3*margin) / 2
	rowWidth    = columnWidth - nameWidth - totalWidth // of the longest bar
	timesTop    = firstTop + 2*panelStep
	chartHeight = timesTop + rowsTop + 6*rowHeight + margin
)

// A picture in a page shows no tooltips, but the file opened by itself does, and a screen
// reader reads title and desc.
const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" role="img" aria-labelledby="title desc">
<title id="title">%[3]s</title>
<desc id="desc">The bars have their figures as text.</desc>
<style>
.back { fill: #ffffff } .text { fill: #1f2328 } .line { stroke: #8c959f } .grey { fill: #59636e } .server { fill-opacity: 0.45 }
.c0 { fill: #0b62c4 } .c1 { fill: #1a7f37 } .c2 { fill: #54aeff } .c3 { fill: #8c959f } .c4 { fill: #cf4a22 } .c5 { fill: #eda145 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } .text { fill: #e6edf3 } .line { stroke: #6e7681 } .grey { fill: #9198a1 }
.c0 { fill: #388bfd } .c1 { fill: #3fb950 } .c2 { fill: #a5d6ff } .c3 { fill: #8b949e } .c4 { fill: #ff7b72 } .c5 { fill: #ffc680 }
}
</style>
<rect class="back" width="%[1]d" height="%[2]d"/>
`

// The styles of texts.
const (
	plain   = ""
	heading = ` font-size="14" font-weight="600"`
	bold    = ` font-weight="600"`
	small   = ` font-size="11"`
	middle  = ` text-anchor="middle"`
)

func rect(class string, x, y, width, height int) string {
	return fmt.Sprintf(`<rect class="%s" x="%d" y="%d" width="%d" height="%d"/>`, class, x, y, width, height)
}

func text(x, y int, style, content string) string {
	return fmt.Sprintf(`<text class="text" x="%d" y="%d"%s>%s</text>`, x, y, style, content)
}

// Chart draws throughput by callers and contender as bars, in a panel for evenly used keys
// and one for a hot key, and below them processor time per decision, the client's and the
// server's. Each panel has a separate scale. Colours and background follow the reader's
// light or dark scheme. Every bar has its figure as text.
func (r *Run) Chart() string {
	var b strings.Builder
	fmt.Fprintf(&b, chartHead, chartWidth, chartHeight, chartTitle)
	const columns = 3
	for i, c := range chartContenders {
		x, y := margin+i%columns*(chartWidth-2*margin)/columns, 14+i/columns*legendStep
		b.WriteString(rect(fmt.Sprint("c", i), x, y, 12, 12) + text(x+18, y+10, plain, c.id+": "+c.name) + "\n")
	}
	r.panel(&b, Even, firstTop)
	r.panel(&b, Hot, firstTop+panelStep)
	b.WriteString(text(margin, timesTop+14, heading, "processor time per decision, "+chartCallers+" callers") + "\n")
	for i, class := range []string{"grey", "grey server"} {
		x := margin + columnWidth + margin + 80*i
		b.WriteString(rect(class, x, timesTop+3, 12, 12) + text(x+18, timesTop+13, plain, []string{"client", "server"}[i]) + "\n")
	}
	r.times(&b, Even, margin)
	r.times(&b, Hot, margin+columnWidth+margin)
	return b.String() + "</svg>\n"
}

// panel draws the throughput of a section.
func (r *Run) panel(b *strings.Builder, section string, top int) {
	base, right := top+36+barsHeight, chartWidth-margin
	b.WriteString(text(margin, top+14, heading, r.title(section)+": decisions per second") + "\n")
	var settings []string
	highest := 1.0
	for _, c := range r.Cells {
		if c.Section == section && slices.ContainsFunc(chartContenders, func(d drawn) bool { return d.id == c.Contender }) {
			highest = max(highest, Median(c.each(PerSecond)))
			settings = add(settings, c.Setting)
		}
	}
	x := margin
	for _, s := range settings {
		for i, d := range chartContenders {
			if c := r.cell(section, d.id, s); c != nil {
				v := Median(c.each(PerSecond))
				height := max(1, int(v/highest*barsHeight))
				fmt.Fprintf(b, `<g class="bar"><title>%s, callers: %s, decisions per second: %s</title>%s%s</g>`+"\n", d.id, s, Count(v),
					rect(fmt.Sprint("c", i), x, base-height, barWidth-2, height), text(x+barWidth/2-1, base-height-4, small+middle, short(v)))
			}
			x += barWidth
		}
		b.WriteString(text(x-len(chartContenders)*barWidth/2, base+18, middle, s+" callers") + "\n")
		x += (right - margin - len(settings)*len(chartContenders)*barWidth) / max(1, len(settings)-1)
	}
	fmt.Fprintf(b, `<line class="line" x1="%d" x2="%d" y1="%d" y2="%[3]d"/>`+"\n", margin, right, base)
}

// title returns a section's.
func (r *Run) title(section string) string {
	for _, s := range r.Sections {
		if s.Name == section {
			return s.Title
		}
	}
	return section
}

// times draws the processor time of a section.
func (r *Run) times(b *strings.Builder, section string, left int) {
	b.WriteString(text(left, timesTop+38, bold, r.title(section)) + "\n")
	used := map[string][2]float64{} // medians; absent if unknown
	longest := 1.0
	for _, d := range chartContenders {
		if c := r.cell(section, d.id, chartCallers); c != nil {
			if clients, servers := c.each(Client), c.each(Server); clients != nil && servers != nil {
				used[d.id] = [2]float64{Median(clients), Median(servers)}
				longest = max(longest, used[d.id][0]+used[d.id][1])
			}
		}
	}
	y := timesTop + rowsTop
	for i, d := range chartContenders {
		if r.cell(section, d.id, chartCallers) == nil {
			continue
		}
		x, bars, total := left+nameWidth, "", "unknown"
		if u, ok := used[d.id]; ok {
			micros := func(v float64) string { return trim(v / microsecond) }
			client, server := max(1, int(u[0]/longest*rowWidth)), max(1, int(u[1]/longest*rowWidth))
			bars = rect(fmt.Sprint("c", i), x, y, client, 18) + rect(fmt.Sprint("c", i, " server"), x+client, y, server, 18)
			x, total = x+client+server, micros(u[0]+u[1])+" µs ("+micros(u[0])+" + "+micros(u[1])+")"
		}
		fmt.Fprintf(b, `<g class="row"><title>%s: %s</title>%s%s%s</g>`+"\n", d.id, total, text(left, y+13, plain, d.id), bars, text(x+6, y+13, small, total))
		y += rowHeight
	}
}
