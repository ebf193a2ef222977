package report

import (
	"strings"
	"testing"
)

// cellOf makes a cell from a throughput per round.
func cellOf(section, setting, contender string, perSecond ...float64) *Cell {
	c := &Cell{Section: section, Contender: contender, Setting: setting}
	for _, n := range perSecond {
		c.Rounds = append(c.Rounds, Figures{PerSecond: n, Allocs: 2.04, P50: 1e9 / n, P99: 3e9 / n, Client: 2e9 / n, Server: 4e9 / n})
	}
	return c
}

func someRun() *Run {
	return &Run{
		Notes: []string{"a note"}, Facts: []Fact{{"PostgreSQL", "15.18"}},
		Sections: []Section{
			{Name: Hot, Title: "one hot key", By: "callers", Figure: PerSecond, More: []Figure{P50, Client}},
			{Name: Even, Title: "100,000 keys evenly", By: "callers", Figure: PerSecond, More: []Figure{P50, Client}},
			{Name: "zipf", Title: "not measured"},
			{Name: "load-clock", Title: "by a clock", Note: "Due.", Figure: P99},
		},
		Cells: []*Cell{
			// The machine's speed halves after the first round: within each round the
			// ratio is 0.9, 0.8 and 0.7.
			cellOf(Even, "16", "bare-off", 100_000, 50_000, 50_000),
			cellOf(Even, "16", "single-relaxed", 90_000, 40_000, 35_000),
			cellOf(Even, "16", "batch-relaxed", 120_000, 60_000, 61_000),
			cellOf(Even, "16", "redis_rate", 121_000, 61_000, 61_000),
			cellOf(Hot, "1", "batch-relaxed", 10_000, 10_000, 10_000),
			cellOf(Hot, "1", "single-relaxed", 10_500, 10_500, 10_500),
			cellOf(Hot, "1", "redis_rate", 20_000, 20_000, 20_000),
			cellOf(Even, "1", "batch-relaxed", 10_000),
			cellOf(Even, "1", "single-relaxed", 20_000),
			// 4, 5 and 3.9 µs of the client, and twice as many of the server.
			cellOf(Even, "512", "batch-relaxed", 500_000, 400_000, 512_821),
			cellOf(Even, "512", "redis_rate", 300_000, 400_000, 200_000),
			cellOf("load-clock", "50", "batch-durable", 300),
		},
	}
}

func TestMarkdown(t *testing.T) {
	page := someRun().Markdown("results.svg")
	// The chart first, then whether the goals were reached, and only then how it was measured.
	last := 0
	for _, line := range []string{
		"# Benchmark",
		"![Decisions per second, and processor time per decision. The tables below have the figures.](results.svg)",
		"## Goals",
		"| batch-relaxed | client | even: 512 | ≤ 4µs | 4µs (3.9µs–5µs) |",
		"| batch-relaxed | server | even: 512 | ≤ 11µs | 8µs (7.8µs–10µs) |",
		"| batch-relaxed / redis_rate | decisions/s | even: 16, 512 | ≥ 1, 2, 2 | **0.992** (0.984–1), **1.67** (1–2.56) |",
		"| single-relaxed / bare-off | decisions/s | even: 16 | ≥ 0.8 | 0.8 (0.7–0.9) |",
		"| batch-relaxed / single-relaxed | p50 | hot, even: 1 | ≤ 1.1 | 1.05, **2** |",
		"| batch-relaxed / redis_rate | p50 | hot: 1 | ≤ 1.4 | **2** |",
		"| batch-durable | p99 | load-clock: 50 | ≤ 10ms | 10ms |",
		"## hot: one hot key",
		"## even: 100,000 keys evenly",
		"| decisions/s by callers | 16 | 1 | 512 | p50 | client |",
		"|---|---:|---:|---:|---:|---:|",
		"| single-relaxed | 40,000 | 20,000 |  |  |  |",
		"| batch-relaxed | 61,000 | 10,000 | 500,000 | 2µs | 4µs |",
		"## load-clock: by a clock", "Due.",
		"## Settings", "- a note", "| PostgreSQL | 15.18 |",
	} {
		at := strings.Index(page, line+"\n")
		if at < last {
			t.Errorf("this line is missing or at the wrong place: %s", line)
		}
		last = max(last, at)
	}
	for _, text := range []string{"quick", "zipf", "lua-rueidis", "NaN", "unknown"} {
		if strings.Contains(page, text) {
			t.Errorf("the page has %q, which was not measured", text)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

func TestMarkdownSaysThatItIsQuick(t *testing.T) {
	r := someRun()
	r.Quick = true
	if page := r.Markdown(""); !strings.Contains(page, "A quick look") || strings.Contains(page, "![") {
		t.Error("a quick page has to say so, and shows no chart")
	}
}

// TestUnknownProcessorTime: a goal on what the system does not report is neither reached nor
// missed.
func TestUnknownProcessorTime(t *testing.T) {
	c := cellOf(Even, "512", "batch-relaxed", 500_000)
	delete(c.Rounds[0], Server)
	r := &Run{Cells: []*Cell{c}, Sections: []Section{{Name: Even, Figure: Server, More: []Figure{Client}}}}
	page := r.Markdown("results.svg")
	for _, text := range []string{
		"| batch-relaxed | client | even: 512 | ≤ 4µs | 4µs |\n",
		"| batch-relaxed | server | even: 512 | ≤ 11µs | unknown |\n",
		"| batch-relaxed |  | 4µs |\n",
	} {
		if !strings.Contains(page, text) {
			t.Errorf("%q is missing in\n%s", text, page)
		}
	}
	if !strings.Contains(r.Chart(), ">unknown</text>") {
		t.Error("the chart does not say that a time is unknown")
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(512), "512"}, {Count(1510432), "1,510,000"}, {Count(63981), "64,000"}, {Count(999.9), "1,000"},
		{short(512), "512"}, {short(2361), "2.4k"}, {short(9999), "10k"}, {short(63981), "64k"}, {short(1510432), "1.5M"}, {short(999_999), "1M"},
		{ratio(0.8321), "0.832"}, {ratio(2), "2"}, {ratio(57.34), "57.3"}, {ratio(1234), "1,230"},
		{span(0), "0s"}, {span(412), "412ns"}, {span(84249), "84.2µs"}, {span(1.3e9), "1.3s"}, {span(999_999), "1ms"},
		{Figures{PerSecond: 5120, P50: 84249}.String(), "decisions/s 5,120, p50 84.2µs"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if m := Median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("the median of three is %v, want 2", m)
	}
	if m := Median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("the median of four is %v, want 2.5", m)
	}
}
