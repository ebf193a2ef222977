package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/bench/measure"
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

// chartCallers is the number of callers at which processor time is drawn.
const chartCallers = 512

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
)

// Chart draws throughput by callers and contender as bars, in a panel for evenly used keys
// and one for a hot key, and below them processor time per decision, the client's and the
// server's. Each panel has a separate scale. Colours and background follow the reader's
// light or dark scheme. Every bar has its figure as text.
func (r *Run) Chart(w io.Writer) error {
	d := drawing{Width: chartWidth, Title: chartTitle, Description: r.alt()}
	const columns = 3
	for i, c := range chartContenders {
		d.Legend = append(d.Legend, mark{
			X: margin + i%columns*(chartWidth-2*margin)/columns, Y: 14 + i/columns*legendStep, Class: i, Text: c.id + ": " + c.name,
		})
	}
	top := firstTop
	for _, k := range []Keys{Even, Hot} {
		d.Panels = append(d.Panels, r.panel(k, top))
		top += panelStep
	}
	d.Heading = mark{X: margin, Y: top + 14, Text: "processor time per decision, " + manyCallers(chartCallers)}
	d.Parts = []mark{{X: margin + columnWidth + margin, Y: top + 3, Text: "client"}, {X: margin + columnWidth + margin + 80, Y: top + 3, Text: "server"}}
	for i, k := range []Keys{Even, Hot} {
		d.Times = append(d.Times, r.times(k, margin+i*(columnWidth+margin), top))
	}
	d.Height = top + rowsTop + len(chartContenders)*rowHeight + margin
	return chartTemplate.Execute(w, d)
}

// panel returns the panel of throughput for one way to choose keys.
func (r *Run) panel(k Keys, top int) panel {
	p := panel{Title: r.label(k) + ": decisions per second", Y: top + 14, Base: top + 36 + barsHeight, Left: margin, Right: chartWidth - margin}
	var callers []int
	highest := 1.0
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Keys == k && slices.ContainsFunc(chartContenders, func(d drawn) bool { return d.id == c.Contender }) {
			highest = max(highest, median(c.each(perSecond)))
			if !slices.Contains(callers, c.Callers) {
				callers = append(callers, c.Callers)
			}
		}
	}
	x := margin
	for _, n := range callers {
		for i, d := range chartContenders {
			if c := r.cell(k, n, d.id); c != nil {
				v := median(c.each(perSecond))
				height := max(1, int(v/highest*barsHeight))
				p.Bars = append(p.Bars, bar{
					X: x, Y: p.Base - height, Height: height, Class: i, Middle: x + barWidth/2 - 1, Above: p.Base - height - 4, Text: short(v),
					Title: fmt.Sprintf("%s, %s: %s decisions per second", d.id, manyCallers(n), count(v)),
				})
			}
			x += barWidth
		}
		p.Groups = append(p.Groups, mark{X: x - len(chartContenders)*barWidth/2, Y: p.Base + 18, Text: manyCallers(n)})
		x += (p.Right - margin - len(callers)*len(chartContenders)*barWidth) / max(1, len(callers)-1)
	}
	return p
}

// times returns the panel of processor time for one way to choose keys.
func (r *Run) times(k Keys, left, top int) times {
	t := times{Title: r.label(k), X: left, Y: top + 38}
	longest := 1.0
	for _, d := range chartContenders {
		if used := r.processor(k, d.id); used.known {
			longest = max(longest, used.client+used.server)
		}
	}
	y := top + rowsTop
	for i, d := range chartContenders {
		used := r.processor(k, d.id)
		if !used.measured {
			continue
		}
		row := row{NameX: left, X: left + nameWidth, Y: y, TextY: y + 13, Class: i, Name: d.id, Text: "unknown"}
		if used.known {
			row.Client = max(1, int(used.client/longest*rowWidth))
			row.Server = max(1, int(used.server/longest*rowWidth))
			row.Text = used.text()
		}
		row.ServerX = row.X + row.Client
		row.TextX = row.ServerX + row.Server + 6
		t.Rows = append(t.Rows, row)
		y += rowHeight
	}
	return t
}

// processorTime is medians in nanoseconds per decision.
type processorTime struct {
	client, server  float64
	measured, known bool
}

// processor returns a contender's processor time with chartCallers.
func (r *Run) processor(k Keys, id string) (t processorTime) {
	c := r.cell(k, chartCallers, id)
	if c == nil {
		return t
	}
	clients, servers := c.each(client), c.each(server)
	return processorTime{
		median(clients), median(servers), true,
		!slices.Contains(clients, measure.Unknown) && !slices.Contains(servers, measure.Unknown),
	}
}

// text is such as "16.4 µs (6.05 + 10.4)".
func (t processorTime) text() string {
	micros := func(v float64) string { return trim(v / microsecond) }
	return micros(t.client+t.server) + " µs (" + micros(t.client) + " + " + micros(t.server) + ")"
}

const chartTitle = "Decisions per second, and processor time per decision"

// alt is the chart's text alternative: what it shows with the most callers.
func (r *Run) alt() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. With %s", chartTitle, manyCallers(chartCallers))
	for i, k := range []Keys{Even, Hot} {
		if i > 0 {
			b.WriteString(". With as many")
		}
		b.WriteString(" on " + r.label(k))
		separator := ": "
		for _, d := range chartContenders {
			c := r.cell(k, chartCallers, d.id)
			if c == nil {
				continue
			}
			fmt.Fprintf(&b, "%s%s %s", separator, d.id, count(median(c.each(perSecond))))
			if used := r.processor(k, d.id); used.known {
				b.WriteString(" at " + used.text())
			}
			separator = "; "
		}
	}
	b.WriteString(". In parentheses: client and server.")
	return b.String()
}

func manyCallers(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return count(float64(n)) + " callers"
}
