package report

import (
	"errors"
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
			Client: 2e9 / float64(n), Server: 4e9 / float64(n),
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
			// 4, 5 and 3.9 µs of the client, and twice as many of the server.
			cellOf(Even, 512, "batch-relaxed", 500_000, 400_000, 512_821),
			cellOf(Even, 512, "lua-rueidis", 400_000, 400_000, 400_000),
			cellOf(Amounts, 128, "amounts-batch", 2000, 1000, 1000),
			cellOf(Amounts, 128, "amounts-single", 100, 100, 200),
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
		"| throughput | batch-relaxed / lua-rueidis | 100,000 keys evenly | 512 | ≥ 1.3 | 1.25 | 1 to 1.28 | **not reached** |",
		"| throughput | amounts-batch / amounts-single | one hot key, amounts that differ | 128 | ≥ 10 | 10 | 5 to 20 | reached |",
		"| client's processor time | batch-relaxed | 100,000 keys evenly | 512 | ≤ 4 µs | 4 µs | 3.9 µs to 5 µs | reached |",
		"| server's processor time | batch-relaxed | 100,000 keys evenly | 512 | ≤ 11 µs | 8 µs | 7.8 µs to 10 µs | reached |",
		"| p50 | batch-relaxed / single-relaxed | one hot key | 1 | ≤ 1.1 | 1.05 | 1.05 to 1.05 | reached |",
		"| p50 | batch-relaxed / redis_rate | one hot key | 1 | ≤ 1.4 | 2 | 2 to 2 | **not reached** |",
		"| time | a denial from the cache | one hot key | 1 | < 1 µs, 0 allocations | 400 ns | 0.00 allocations | reached |",
		"| PostgreSQL | 15.18 |",
		"| bare-off | an upsert | PostgreSQL | all |",
		"## One hot key",
		"## 100,000 keys evenly",
		"## One hot key, amounts that differ",
		"| 16 | single-relaxed | 40,000 | 35,000 to 90,000 | 25 µs | 75 µs | 50 µs | 100 µs | 2.0 |",
		"| 1,000 | 960 | 16 | log-sorted-set | 71,000 | 70,000 to 72,000 | 14.1 µs | 42.3 µs | 28.2 µs | 56.3 µs | 2.0 |",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("this line is missing: %s", line)
		}
	}
	for _, text := range []string{"quick", "Zipf", "throttled", "NaN", "unknown"} {
		if strings.Contains(page, text) {
			t.Errorf("the page says %q, which was not measured", text)
		}
	}
	// The chart first, then whether the goals were reached, and only then how it was measured.
	last := 0
	for _, part := range []string{
		"# Benchmark\n", "![Decisions per second, and processor time per decision. With 512 callers on 100,000 keys evenly: batch-relaxed 500,000 at 12 µs (4 + 8); lua-rueidis 400,000 at 15 µs (5 + 10). With as many on one hot key. In parentheses: client and server.](results.svg)\n",
		"## Goals\n", "## Settings\n", "## One hot key\n", "## 100,000 keys evenly\n", "## One hot key, amounts that differ\n", "## Sliding log\n",
	} {
		at := strings.Index(page, part)
		if at < last {
			t.Errorf("%q is missing or at the wrong place", part)
		}
		last = max(last, at)
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

// TestUnknownProcessorTime: a goal on what the system does not report is neither reached nor
// missed.
func TestUnknownProcessorTime(t *testing.T) {
	c := cellOf(Even, 512, "batch-relaxed", 500_000)
	c.Samples[0].Server = measure.Unknown
	r := &Run{KeyCount: 100_000, Cells: []Cell{c}}
	var page, chart strings.Builder
	if err := errors.Join(r.Markdown(&page, "results.svg"), r.Chart(&chart)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"| client's processor time | batch-relaxed | 100,000 keys evenly | 512 | ≤ 4 µs | 4 µs | 4 µs to 4 µs | reached |\n",
		"| server's processor time | batch-relaxed | 100,000 keys evenly | 512 | ≤ 11 µs |  |  | unknown here |\n",
		"| 512 | batch-relaxed | 500,000 | 500,000 to 500,000 | 2 µs | 6 µs | 4 µs | unknown | 2.0 |\n",
		"this system does not report it",
	} {
		if !strings.Contains(page.String(), text) {
			t.Errorf("%q is missing in\n%s", text, page.String())
		}
	}
	if !strings.Contains(chart.String(), ">unknown</text>") || strings.Contains(page.String(), "500,000 at ") {
		t.Error("the chart does not say that a time is unknown")
	}
}

func TestDenialIsJudged(t *testing.T) {
	for _, c := range []struct {
		denial Denial
		result string
	}{{Denial{999, 0}, isReached}, {Denial{1000, 0}, isNotReached}, {Denial{400, 1}, isNotReached}} {
		r := Run{Denials: []Denial{c.denial}}
		if _, _, result := r.denial(); result != c.result {
			t.Errorf("%+v is %s, want %s", c.denial, result, c.result)
		}
	}
}

// TestNamesAreContenders: a goal or a bar whose contender does not exist would be silently
// left out.
func TestNamesAreContenders(t *testing.T) {
	var names []string
	for _, d := range chartContenders {
		names = append(names, d.id)
	}
	for _, g := range goals {
		names = append(names, g.over)
		if g.under != "" {
			names = append(names, g.under)
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(slices.Concat(contender.All(), contender.Amounts()), func(c contender.Contender) bool { return c.ID == n }) {
			t.Errorf("%s is no contender", n)
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
