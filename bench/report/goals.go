package report

import (
	"slices"
	"strings"
)

// goal is a figure of a contender, or its ratio to another's in the same round, and the
// target at each setting, or one for all.
type goal struct {
	over, under string // the contenders; under is "" for the figure itself
	figure      Figure
	sections    []string
	settings    []string
	want        []float64
	atMost      bool
}

const (
	microsecond = 1e3
	millisecond = 1e6
)

var everyKeys = []string{Hot, Even, "zipf"}

// goals are the project's goals. They are never lowered: one that is out of reach stays in
// the table.
var goals = []goal{
	{"batch-relaxed", "", Client, []string{Even}, []string{"512"}, []float64{4 * microsecond}, true},
	{"batch-relaxed", "", Client, []string{Hot}, []string{"512"}, []float64{1.1 * microsecond}, true},
	{"batch-relaxed", "", Server, []string{Even}, []string{"512"}, []float64{11 * microsecond}, true},
	{"batch-relaxed", "lua-rueidis", PerSecond, []string{Even}, []string{"16", "128", "512"}, []float64{0.8, 1.1, 1.3}, false},
	{"batch-relaxed", "lua-rueidis", PerSecond, []string{Hot}, []string{"128", "512"}, []float64{5, 10}, false},
	{"batch-relaxed", "redis_rate", PerSecond, []string{Even}, []string{"16", "128", "512"}, []float64{1, 2, 2}, false},
	{"single-relaxed", "bare-off", PerSecond, everyKeys, []string{"1", "16", "128"}, []float64{0.8}, false},
	{"batch-durable", "single-durable", PerSecond, []string{Hot}, []string{"128"}, []float64{50}, false},
	{"batch-durable", "single-durable", PerSecond, []string{Even}, []string{"128"}, []float64{4}, false},
	{"amounts-batch", "amounts-single", PerSecond, []string{Hot}, []string{"128"}, []float64{10}, false},
	{"batch-relaxed", "bare-off", P50, everyKeys, []string{"1"}, []float64{1.2}, true},
	{"batch-relaxed", "single-relaxed", P50, everyKeys, []string{"1"}, []float64{1.1}, true},
	{"batch-relaxed", "redis_rate", P50, everyKeys, []string{"1"}, []float64{1.4}, true},
	{"remembered", "", Mean, []string{"denial"}, []string{"1"}, []float64{1 * microsecond}, true},
	{"remembered", "", Allocs, []string{"denial"}, []string{"1"}, []float64{0.001}, true}, // others of the process in that time
	{"order with spend", "order with upsert", P50, []string{"spend-order"}, []string{"1", "16"}, []float64{1.15}, true},
	{"AllowAll", "two upserts", PerSecond, []string{"spend-two"}, []string{"relaxed", "durable"}, []float64{0.95}, false},
	{"batch-durable", "", P99, []string{"load-clock"}, []string{"20", "50"}, []float64{10 * millisecond}, true},
	{"batch-relaxed", "", P99, []string{"load-clock"}, []string{"20", "50"}, []float64{10 * millisecond}, true},
	{"others, surge", "others, before", P99, []string{"load-surge"}, []string{"durable", "relaxed"}, []float64{1.2}, true},
	{"leases", "", P99, []string{"leases-paced"}, []string{"50"}, []float64{50 * microsecond}, true},
	{"equal, ample", "", Statements, []string{"leases"}, []string{"8"}, []float64{0.01}, true},
	{"8:1, ample", "", Statements, []string{"leases"}, []string{"8"}, []float64{0.01}, true},
	{"equal, scarce", "", Admitted, []string{"leases"}, []string{"8"}, []float64{0.95}, false},
	{"8:1, scarce", "", Admitted, []string{"leases"}, []string{"8"}, []float64{0.95}, false},
	{"equal, scarce", "", Poorest, []string{"leases"}, []string{"8"}, []float64{0.5}, false},
	{"8:1, scarce", "", Poorest, []string{"leases"}, []string{"8"}, []float64{0.5}, false},
	{"http", "", PerSecond, []string{"serve"}, []string{"100000"}, []float64{15_000}, false},
	{"grpc", "", PerSecond, []string{"serve"}, []string{"100000"}, []float64{20_000}, false},
	{"http", "", P99, []string{"serve"}, []string{"100000"}, []float64{25 * millisecond}, true},
	{"grpc", "", P99, []string{"serve"}, []string{"100000"}, []float64{25 * millisecond}, true},
	{"grpc", "envoyproxy/ratelimit", PerSecond, []string{"serve"}, []string{"100000", "1"}, []float64{1, 3}, false},
	{"10,000,000 rows", "10,000 rows", P50, []string{"growth-rows"}, []string{"1", "16"}, []float64{1.3}, true},
}

// values returns the goal's figure in a section and setting by round, sorted. They are
// nothing if the system does not report it. ok is false if a cell was left out.
func (r *Run) values(g *goal, section, setting string) (values []float64, ok bool) {
	over, under := r.cell(section, g.over, setting), r.cell(section, g.under, setting)
	if over == nil || under == nil && g.under != "" {
		return nil, false
	}
	values = over.each(g.figure)
	if under != nil {
		for i, v := range under.each(g.figure) {
			values[i] /= v
		}
	}
	slices.Sort(values)
	return values, true
}

// results returns a goal's sections, settings and results that were measured, and the names
// of those that were not.
func (r *Run) results(g *goal) (sections, settings, results, missing []string) {
	for _, section := range g.sections {
		for i, setting := range g.settings {
			values, ok := r.values(g, section, setting)
			if !ok {
				missing = append(missing, section+"/"+g.what()+"/"+setting)
				continue
			}
			sections, settings = add(sections, section), add(settings, setting)
			results = append(results, g.result(values, g.want[min(i, len(g.want)-1)]))
		}
	}
	return sections, settings, results, missing
}

// Missing names the goals of which a cell is missing.
func (r *Run) Missing() (list []string) {
	for _, g := range goals {
		_, _, _, missing := r.results(&g)
		list = append(list, missing...)
	}
	return list
}

// what names the contenders.
func (g *goal) what() string {
	if g.under == "" {
		return g.over
	}
	return g.over + " / " + g.under
}

// format writes a value of the goal: a ratio, or a figure.
func (g *goal) format(v float64) string {
	if g.under == "" {
		return g.figure.Format(v)
	}
	return ratio(v)
}

// result writes the median and the range of the rounds.
func (g *goal) result(values []float64, want float64) string {
	if len(values) == 0 {
		return "unknown"
	}
	m, least, greatest := Median(values), values[0], values[len(values)-1]
	text := g.format(m)
	if g.atMost && m > want || !g.atMost && m < want {
		text = "**" + text + "**"
	}
	if least < greatest {
		text += " (" + g.format(least) + "–" + g.format(greatest) + ")"
	}
	return text
}

// goals writes the project's goals, and the results in the sections and settings that were
// measured.
func (r *Run) goals(p *Page) {
	list := func(words []string) string { return strings.Join(words, ", ") }
	p.Line("## Goals")
	p.Line("")
	p.Line("A / B is a ratio within a round. Results have the rounds' least and most, in the order of sections and settings. **Bold** misses its goal.")
	p.Line("")
	p.Table("Of", "Figure", "Sections: settings", "Goal", "Results")
	for _, g := range goals {
		sections, settings, results, _ := r.results(&g)
		if results == nil {
			continue
		}
		var wants []string
		for _, w := range g.want {
			wants = append(wants, g.format(w))
		}
		sign := "≥ "
		if g.atMost {
			sign = "≤ "
		}
		p.Row(g.what(), string(g.figure), list(sections)+": "+list(settings), sign+list(wants), list(results))
	}
	p.Line("")
}
