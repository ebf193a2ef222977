package report

import (
	"encoding/xml"
	"slices"
	"testing"
)

// box is a rectangle of the chart.
type box struct {
	Class  string `xml:"class,attr"`
	X      int    `xml:"x,attr"`
	Y      int    `xml:"y,attr"`
	Width  int    `xml:"width,attr"`
	Height int    `xml:"height,attr"`
}

// parsed is the chart as a program reads it: the legend's, bars' and rows' groups.
type parsed struct {
	Width  int      `xml:"width,attr"`
	Height int      `xml:"height,attr"`
	Texts  []string `xml:"text"`
	Groups []struct {
		Class string `xml:"class,attr"`
		Title string `xml:"title"`
		Rects []box  `xml:"rect"`
		Texts []struct {
			Class string `xml:"class,attr"`
			X     int    `xml:"x,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	} `xml:"g"`
}

func chartOf(t *testing.T, r *Run) (svg parsed) {
	t.Helper()
	if err := xml.Unmarshal([]byte(r.Chart()), &svg); err != nil {
		t.Fatalf("the chart is no XML: %v", err)
	}
	for _, g := range svg.Groups {
		for _, r := range g.Rects {
			if r.X < 0 || r.X+r.Width > svg.Width || r.Y < 0 || r.Y+r.Height > svg.Height {
				t.Errorf("%s: %+v is outside", g.Title, r)
			}
		}
	}
	return svg
}

func TestChart(t *testing.T) {
	svg := chartOf(t, &Run{Sections: someRun().Sections, Cells: []*Cell{
		cellOf(Hot, "512", "batch-relaxed", 1_000_000),
		cellOf(Hot, "512", "lua-rueidis", 125_000),
		cellOf(Even, "1", "bare-off", 25_000),
		cellOf(Even, "1", "throttled", 200_000), // not drawn
		cellOf(Even, "512", "redis_rate", 50_000, 10_000, 90_000),
	}})
	// First even keys, each panel with a separate scale, by the median of the rounds.
	want := []struct {
		kind, class, title string
		size               int // height of a bar, width of a row
	}{
		{"bar", "c3", "bare-off, callers: 1, decisions per second: 25,000", barsHeight / 2},
		{"bar", "c5", "redis_rate, callers: 512, decisions per second: 50,000", barsHeight},
		{"bar", "c0", "batch-relaxed, callers: 512, decisions per second: 1,000,000", barsHeight},
		{"bar", "c4", "lua-rueidis, callers: 512, decisions per second: 125,000", barsHeight / 8},
		{"row", "c5", "redis_rate: 120 µs (40 + 80)", rowWidth},
		{"row", "c0", "batch-relaxed: 6 µs (2 + 4)", rowWidth / 8},
		{"row", "c4", "lua-rueidis: 48 µs (16 + 32)", rowWidth},
	}
	groups := svg.Groups
	if len(groups) != len(want) {
		t.Fatalf("%d bars and rows, want %d", len(groups), len(want))
	}
	for i, w := range want {
		g := groups[i]
		if g.Class != w.kind || g.Title != w.title || g.Rects[0].Class != w.class {
			t.Errorf("%d is a %s of class %s and says %q, want %+v", i, g.Class, g.Rects[0].Class, g.Title, w)
		}
		switch w.kind {
		case "bar":
			if got := g.Rects[0].Height; got != w.size {
				t.Errorf("%s: %d high, want %d", g.Title, got, w.size)
			}
		case "row":
			client, server := g.Rects[0], g.Rects[1]
			if got := client.Width + server.Width; got < w.size-1 || got > w.size {
				t.Errorf("%s: %d long, want %d", g.Title, got, w.size)
			}
		}
	}
	for _, text := range []string{
		"100,000 keys evenly: decisions per second", "1 callers", "512 callers",
		"processor time per decision, 512 callers", "one hot key", "client", "server",
	} {
		if !slices.Contains(svg.Texts, text) {
			t.Errorf("the chart does not say %q", text)
		}
	}
}

// TestChartFits fills every place with the longest figures.
func TestChartFits(t *testing.T) {
	r := &Run{}
	for _, k := range []string{Even, Hot} {
		for _, callers := range []string{"1", "16 callers", "128", "512 callers"} {
			for _, d := range chartContenders {
				r.Cells = append(r.Cells, cellOf(k, callers, d.id, 3_305_785))
			}
		}
	}
	const letter = 7 // a wide one's width at the size of such texts
	for _, g := range chartOf(t, r).Groups {
		for _, text := range g.Texts {
			if g.Class == "row" && text.X+letter*len([]rune(text.Text)) > chartWidth {
				t.Errorf("%q does not fit", text.Text)
			}
		}
	}
}
