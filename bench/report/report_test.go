package report

import (
	"encoding/xml"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
)

// cellOf makes a cell from a throughput per round.
func cellOf(k Keys, callers int, contender string, perSecond ...int64) Cell {
	c := Cell{Keys: k, Callers: callers, Contender: contender}
	for _, n := range perSecond {
		c.Samples = append(c.Samples, measure.Sample{
			Decisions: n, Elapsed: time.Second, Allocs: 2.04,
			P50: time.Second / time.Duration(n), P99: 3 * time.Second / time.Duration(n),
		})
	}
	return c
}

func someRun() *Run {
	return &Run{
		Rounds: 3, Warmup: 300 * time.Millisecond, Duration: 1500 * time.Millisecond, KeyCount: 100_000,
		Facts:      []Fact{{"PostgreSQL", "15.18"}},
		Contenders: []Contender{{"bare-off", "an upsert", "PostgreSQL", "all"}},
		Cells: []Cell{
			// The machine's speed halves after the first round: within each round the
			// ratio is 0.9, 0.8 and 0.7.
			cellOf(Even, 16, "bare-off", 100_000, 50_000, 50_000),
			cellOf(Even, 16, "single-relaxed", 90_000, 40_000, 35_000),
			cellOf(Even, 16, "batch-relaxed", 120_000, 60_000, 61_000),
			cellOf(Even, 16, "redis_rate", 121_000, 61_000, 61_000),
			cellOf(Hot, 1, "batch-relaxed", 10_000, 10_000, 10_000),
			cellOf(Hot, 1, "single-relaxed", 10_500, 10_500, 10_500),
			cellOf(Hot, 1, "redis_rate", 20_000, 20_000, 20_000),
			cellOf(Hot, 1, "single-durable", 900, 900, 900),
			cellOf(Hot, 1, "bare-on", 1000, 1000, 1000),
		},
		Logs:    []LogCell{{Limit: 1000, KeyCount: 960, Cell: cellOf("", 16, "log-sorted-set", 70_000, 71_000, 72_000)}},
		Denials: []Denial{{400, 0}, {380, 0.0004}, {2000, 0}},
	}
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := someRun().Markdown(&b, "results.svg"); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, line := range []string{
		"| throughput | single-relaxed / bare-off | 100,000 keys evenly | 16 | ≥ 0.8 | 0.8 | 0.7 to 0.9 | reached |",
		"| throughput | batch-relaxed / redis_rate | 100,000 keys evenly | 16 | ≥ 1 | 0.992 | 0.984 to 1 | **not reached** |",
		"| throughput | single-durable / bare-on | one hot key | 1 |  | 0.9 | 0.9 to 0.9 | reported only |",
		"| p50 | batch-relaxed / single-relaxed | one hot key | 1 | ≤ 1.1 | 1.05 | 1.05 to 1.05 | reached |",
		"| p50 | batch-relaxed / redis_rate | one hot key | 1 | ≤ 1.4 | 2 | 2 to 2 | **not reached** |",
		"| time | a denial from the cache | one hot key | 1 | < 1 µs, 0 allocations | 400 ns | 0.00 allocations | reached |",
		"![decisions per second by contender and callers](results.svg)",
		"| PostgreSQL | 15.18 |",
		"| bare-off | an upsert | PostgreSQL | all |",
		"## One hot key",
		"## 100,000 keys evenly",
		"| 16 | single-relaxed | 40,000 | 35,000 to 90,000 | 25 µs | 75 µs | 2.0 |",
		"| 1,000 | 960 | 16 | log-sorted-set | 71,000 | 70,000 to 72,000 | 14.1 µs | 42.3 µs | 2.0 |",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("this line is missing: %s", line)
		}
	}
	for _, text := range []string{"quick", "Zipf", "lua-rueidis", "NaN"} {
		if strings.Contains(page, text) {
			t.Errorf("the page says %q, which was not measured", text)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

func TestMarkdownSaysThatItIsQuick(t *testing.T) {
	r := someRun()
	r.Quick = true
	var b strings.Builder
	if err := r.Markdown(&b, ""); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "A quick look") || strings.Contains(b.String(), "![") {
		t.Error("a quick page has to say so, and shows no chart")
	}
}

func TestDenialIsJudged(t *testing.T) {
	for _, c := range []struct {
		denial  Denial
		reached bool
	}{{Denial{999, 0}, true}, {Denial{1000, 0}, false}, {Denial{400, 1}, false}} {
		r := Run{Denials: []Denial{c.denial}}
		if _, _, reached := r.denial(); reached != c.reached {
			t.Errorf("%+v: reached is %v, want %v", c.denial, reached, c.reached)
		}
	}
}

// TestNamesAreContenders: a goal or a bar whose contender does not exist would be silently
// left out.
func TestNamesAreContenders(t *testing.T) {
	names := slices.Clone(chartContenders)
	for _, g := range goals {
		names = append(names, g.over, g.under)
	}
	for _, n := range names {
		if !slices.ContainsFunc(contender.All(), func(c contender.Contender) bool { return c.ID == n }) {
			t.Errorf("%s is no contender", n)
		}
	}
}

func TestChart(t *testing.T) {
	r := &Run{KeyCount: 100_000, Cells: []Cell{
		cellOf(Hot, 512, "batch-relaxed", 900_000),
		cellOf(Even, 1, "bare-off", 25_000),
		cellOf(Even, 1, "bare-on", 200_000), // not drawn
		cellOf(Even, 512, "redis_rate", 50_000, 10_000, 90_000),
	}}
	var b strings.Builder
	if err := r.Chart(&b); err != nil {
		t.Fatal(err)
	}
	var svg struct {
		Rects []struct {
			Class  string `xml:"class,attr"`
			X      int    `xml:"x,attr"`
			Y      int    `xml:"y,attr"`
			Height int    `xml:"height,attr"`
		} `xml:"rect"`
		Texts []string `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(b.String()), &svg); err != nil {
		t.Fatalf("the chart is no XML: %v", err)
	}
	// First the background and the legend; then even keys, each panel with a separate
	// scale, by the median of the rounds.
	bars := svg.Rects[1+len(chartContenders):]
	want := []struct {
		class  string
		height int
	}{{"c0", panelHeight / 2}, {"c4", panelHeight}, {"c2", panelHeight}}
	if len(bars) != len(want) {
		t.Fatalf("%d bars, want %d", len(bars), len(want))
	}
	for i, w := range want {
		if bars[i].Class != w.class || bars[i].Height != w.height {
			t.Errorf("bar %d is %s and %d high, want %s and %d", i, bars[i].Class, bars[i].Height, w.class, w.height)
		}
		if bars[i].X < 0 || bars[i].X > chartWidth-barWidth {
			t.Errorf("bar %d at %d is outside", i, bars[i].X)
		}
	}
	if bars[0].Y+bars[0].Height != bars[1].Y+bars[1].Height || bars[2].Y < bars[1].Y+bars[1].Height {
		t.Error("bars do not stand on the lines of their panels")
	}
	for _, text := range []string{"100,000 keys evenly: decisions per second", "1 caller", "512 callers", "25k", "50k", "900k", "redis_rate"} {
		if !slices.Contains(svg.Texts, text) {
			t.Errorf("the chart does not say %q", text)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{count(0), "0"}, {count(512), "512"}, {count(1510432), "1,510,000"}, {count(63981), "64,000"}, {count(999.9), "1,000"},
		{short(512), "512"}, {short(2361), "2.4k"}, {short(9999), "10k"}, {short(63981), "64k"}, {short(1510432), "1.5M"}, {short(999_999), "1M"},
		{ratio(0.8321), "0.832"}, {ratio(2), "2"}, {ratio(57.34), "57.3"}, {ratio(1234), "1,230"},
		{span(0), "0 s"}, {span(412), "412 ns"}, {span(84249), "84.2 µs"}, {span(1300 * time.Millisecond), "1.3 s"}, {span(999_999), "1 ms"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if m := median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("the median of three is %v, want 2", m)
	}
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("the median of four is %v, want 2.5", m)
	}
}
