package report

import (
	"io"
	"slices"
	"text/template"
)

// chartContenders are drawn, in this order; more could not be distinguished.
var chartContenders = []string{"bare-off", "single-relaxed", "batch-relaxed", "batch-durable", "redis_rate", "lua-rueidis", "throttled"}

// The dimensions of the chart, in its own units.
const (
	chartWidth  = 900
	panelLeft   = 16
	panelTop    = 84 // of the first, below the legend
	panelHeight = 200
	panelStep   = 280
	barWidth    = 26
)

// Chart draws throughput by callers and contender as bars, in a panel for evenly used keys
// and one for a hot key, each with a separate scale. Colours and background follow the
// reader's light or dark scheme.
func (r *Run) Chart(w io.Writer) error {
	d := drawing{Width: chartWidth}
	for i, id := range chartContenders {
		d.Legend = append(d.Legend, mark{X: panelLeft + i%4*220, Y: 34 + i/4*20, Class: i, Text: id})
	}
	for _, k := range []Keys{Even, Hot} {
		d.Panels = append(d.Panels, r.panel(k, panelTop+len(d.Panels)*panelStep))
	}
	d.Height = panelTop + len(d.Panels)*panelStep - 20
	return chartTemplate.Execute(w, d)
}

// panel returns the panel for one way to choose keys.
func (r *Run) panel(k Keys, top int) panel {
	p := panel{Title: r.label(k) + ": decisions per second", Y: top + 14, Base: top + 40 + panelHeight, Right: chartWidth - panelLeft}
	var callers []int
	highest := 1.0
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Keys == k && slices.Contains(chartContenders, c.Contender) {
			highest = max(highest, median(c.each(perSecond)))
			if !slices.Contains(callers, c.Callers) {
				callers = append(callers, c.Callers)
			}
		}
	}
	x := panelLeft
	for _, n := range callers {
		for i, id := range chartContenders {
			if c := r.cell(k, n, id); c != nil {
				v := median(c.each(perSecond))
				height := max(1, int(v/highest*panelHeight))
				p.Bars = append(p.Bars, bar{
					X: x, Y: p.Base - height, Height: height, Class: i,
					Middle: x + barWidth/2, Above: p.Base - height - 4, Text: short(v),
				})
			}
			x += barWidth
		}
		text := count(float64(n)) + " callers"
		if n == 1 {
			text = "1 caller"
		}
		p.Groups = append(p.Groups, mark{X: x - len(chartContenders)*barWidth/2, Y: p.Base + 18, Text: text})
		x += (p.Right - panelLeft - len(callers)*len(chartContenders)*barWidth) / max(1, len(callers)-1)
	}
	return p
}

type drawing struct {
	Width, Height int
	Legend        []mark
	Panels        []panel
}

type panel struct {
	Title          string
	Y, Base, Right int
	Bars           []bar
	Groups         []mark
}

type bar struct {
	X, Y, Height, Class, Middle, Above int
	Text                               string
}

type mark struct {
	X, Y, Class int
	Text        string
}

var chartTemplate = template.Must(template.New("chart").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="Decisions per second by callers and contender">
<style>
.back { fill: #ffffff } .text { fill: #1f2328 } .line { stroke: #8c959f }
.c0 { fill: #8c959f } .c1 { fill: #8ecaf5 } .c2 { fill: #0b62c4 } .c3 { fill: #3fa35b } .c4 { fill: #d1442f } .c5 { fill: #f0883e } .c6 { fill: #8a5a44 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } .text { fill: #e6edf3 } .line { stroke: #6e7681 }
.c0 { fill: #8b949e } .c1 { fill: #a5d6ff } .c2 { fill: #388bfd } .c3 { fill: #56d364 } .c4 { fill: #ff7b72 } .c5 { fill: #ffa657 } .c6 { fill: #bc8c6f }
}
</style>
<rect class="back" width="{{.Width}}" height="{{.Height}}"/>
{{- range .Legend}}
<rect class="c{{.Class}}" x="{{.X}}" y="{{.Y}}" width="12" height="12"/><text class="text" x="{{.X}}" dx="18" y="{{.Y}}" dy="10.5">{{.Text}}</text>
{{- end}}
{{- range .Panels}}
<text class="text" x="16" y="{{.Y}}" font-size="14" font-weight="600">{{.Title}}</text>
{{- range .Bars}}
<rect class="c{{.Class}}" x="{{.X}}" y="{{.Y}}" width="24" height="{{.Height}}"/><text class="text" x="{{.Middle}}" y="{{.Above}}" font-size="9" text-anchor="middle">{{.Text}}</text>
{{- end}}
<line class="line" x1="16" x2="{{.Right}}" y1="{{.Base}}" y2="{{.Base}}"/>
{{- range .Groups}}
<text class="text" x="{{.X}}" y="{{.Y}}" text-anchor="middle">{{.Text}}</text>
{{- end}}
{{- end}}
</svg>
`))
