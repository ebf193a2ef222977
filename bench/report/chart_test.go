package report

import (
	"encoding/xml"
	"fmt"
	"slices"
	"testing"
)

// box is a rectangle or a text of the chart.
type box struct {
	Class  string `xml:"class,attr"`
	X      int    `xml:"x,attr"`
	Y      int    `xml:"y,attr"`
	Width  int    `xml:"width,attr"`
	Height int    `xml:"height,attr"`
	Text   string `xml:",chardata"`
}

// parsed is the chart as a program reads it.
type parsed struct {
	Width  int      `xml:"width,attr"`
	Height int      `xml:"height,attr"`
	Texts  []string `xml:"text"`
	Rows   []struct {
		Title string `xml:"title"`
		Rects []box  `xml:"rect"`
		Texts []box  `xml:"text"`
	} `xml:"g"`
}

// chartOf reads a chart and expects that all of it fits.
func chartOf(t *testing.T, r *Run) (svg parsed) {
	t.Helper()
	if err := xml.Unmarshal([]byte(r.Chart()), &svg); err != nil {
		t.Fatalf("the chart is no XML: %v", err)
	}
	const letter = 7 // a wide one's width at the size of such texts
	for _, g := range svg.Rows {
		for _, text := range g.Texts {
			text.Width = letter * len([]rune(text.Text))
			g.Rects = append(g.Rects, text)
		}
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
	// First even keys, each column with a separate scale, by the median of the rounds. A row is
	// its title, its colour, and the lengths of its bars.
	want := []string{
		"bare-off, decisions per second, 1 callers: 25k c3 [94]",
		"redis_rate, decisions per second, 512 callers: 50k c5 [188]",
		"redis_rate, processor time per decision, client + server, 512 callers: 120 µs (40 + 80) c5 [62 125]",
		"batch-relaxed, decisions per second, 512 callers: 1M c0 [188]",
		"lua-rueidis, decisions per second, 512 callers: 125k c4 [23]",
		"batch-relaxed, processor time per decision, client + server, 512 callers: 6 µs (2 + 4) c0 [7 15]",
		"lua-rueidis, processor time per decision, client + server, 512 callers: 48 µs (16 + 32) c4 [62 125]",
	}
	var got []string
	for _, g := range svg.Rows {
		var lengths []int
		for _, r := range g.Rects {
			lengths = append(lengths, r.Width)
		}
		got = append(got, fmt.Sprint(g.Title, " ", g.Rects[0].Class, " ", lengths))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the rows are\n%q, want\n%q", got, want)
	}
	for _, text := range []string{"100,000 keys evenly", "one hot key", "redis_rate: Redis, go-redis"} {
		if !slices.Contains(svg.Texts, text) {
			t.Errorf("the chart does not say %q", text)
		}
	}
}

// TestChartFits fills every place with the longest figures.
func TestChartFits(t *testing.T) {
	r := &Run{}
	for _, k := range []string{Even, Hot} {
		for _, callers := range []string{"1", "16", "128", "512"} {
			for _, d := range chartContenders {
				r.Cells = append(r.Cells, cellOf(k, callers, d.id, 3_305_785))
			}
		}
	}
	if svg := chartOf(t, r); len(svg.Rows) != 2*5*len(chartContenders) {
		t.Errorf("%d rows", len(svg.Rows))
	}
}
