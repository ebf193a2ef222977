package report

import "text/template"

// drawing is the chart's shapes and texts with their places.
type drawing struct {
	Width, Height      int
	Title, Description string
	Legend             []mark
	Panels             []panel
	Heading            mark   // of the times
	Parts              []mark // of their bars: the client's and the server's
	Times              []times
}

// panel is groups of upright bars.
type panel struct {
	Title                string
	Y, Base, Left, Right int
	Bars                 []bar
	Groups               []mark
}

type bar struct {
	X, Y, Height, Class, Middle, Above int
	Text, Title                        string
}

// times is rows of lying bars in two parts.
type times struct {
	Title string
	X, Y  int
	Rows  []row
}

type row struct {
	NameX, X, ServerX, TextX, Y, TextY, Class int
	Client, Server                            int // widths
	Name, Text                                string
}

type mark struct {
	X, Y, Class int
	Text        string
}

// A picture in a page shows no tooltips, but the file opened by itself does, and a screen
// reader reads title and desc.
var chartTemplate = template.Must(template.New("chart").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" height="{{.Height}}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" role="img" aria-labelledby="title desc">
<title id="title">{{.Title}}</title>
<desc id="desc">{{.Description}}</desc>
<style>
.back { fill: #ffffff } .text { fill: #1f2328 } .line { stroke: #8c959f } .grey { fill: #59636e } .server { fill-opacity: 0.45 }
.c0 { fill: #0b62c4 } .c1 { fill: #1a7f37 } .c2 { fill: #54aeff } .c3 { fill: #8c959f } .c4 { fill: #cf4a22 } .c5 { fill: #eda145 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } .text { fill: #e6edf3 } .line { stroke: #6e7681 } .grey { fill: #9198a1 }
.c0 { fill: #388bfd } .c1 { fill: #3fb950 } .c2 { fill: #a5d6ff } .c3 { fill: #8b949e } .c4 { fill: #ff7b72 } .c5 { fill: #ffc680 }
}
</style>
<rect class="back" width="{{.Width}}" height="{{.Height}}"/>
{{- range .Legend}}
<g><rect class="c{{.Class}}" x="{{.X}}" y="{{.Y}}" width="12" height="12"/><text class="text" x="{{.X}}" dx="18" y="{{.Y}}" dy="10.5">{{.Text}}</text></g>
{{- end}}
{{- range .Panels}}
<text class="text" x="{{.Left}}" y="{{.Y}}" font-size="14" font-weight="600">{{.Title}}</text>
{{- range .Bars}}
<g class="bar"><title>{{.Title}}</title><rect class="c{{.Class}}" x="{{.X}}" y="{{.Y}}" width="32" height="{{.Height}}"/><text class="text" x="{{.Middle}}" y="{{.Above}}" font-size="11" text-anchor="middle">{{.Text}}</text></g>
{{- end}}
<line class="line" x1="{{.Left}}" x2="{{.Right}}" y1="{{.Base}}" y2="{{.Base}}"/>
{{- range .Groups}}
<text class="text" x="{{.X}}" y="{{.Y}}" text-anchor="middle">{{.Text}}</text>
{{- end}}
{{- end}}
<text class="text" x="{{.Heading.X}}" y="{{.Heading.Y}}" font-size="14" font-weight="600">{{.Heading.Text}}</text>
{{- range $i, $p := .Parts}}
<rect class="grey{{if $i}} server{{end}}" x="{{$p.X}}" y="{{$p.Y}}" width="12" height="12"/><text class="text" x="{{$p.X}}" dx="18" y="{{$p.Y}}" dy="10.5">{{$p.Text}}</text>
{{- end}}
{{- range .Times}}
<text class="text" x="{{.X}}" y="{{.Y}}" font-weight="600">{{.Title}}</text>
{{- range .Rows}}
<g class="row"><title>{{.Name}}: {{.Text}}</title><text class="text" x="{{.NameX}}" y="{{.TextY}}">{{.Name}}</text>
{{- if .Client}}<rect class="c{{.Class}}" x="{{.X}}" y="{{.Y}}" width="{{.Client}}" height="18"/><rect class="c{{.Class}} server" x="{{.ServerX}}" y="{{.Y}}" width="{{.Server}}" height="18"/>{{end}}
<text class="text" x="{{.TextX}}" y="{{.TextY}}" font-size="11">{{.Text}}</text></g>
{{- end}}
{{- end}}
</svg>
`))
