package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// goal is a figure of a contender, or its ratio to another's in the same round, and the
// target.
type goal struct {
	over    string // the contender
	under   string // whose figure it is divided by; "" for the figure itself
	name    string // of the figure
	figure  func(measure.Sample) float64
	keys    []Keys
	callers []int
	want    float64 // 0: only reported
	atMost  bool
}

// Every choice of keys at which all contenders take part.
var allKeys = []Keys{Hot, Even, Zipf}

const microsecond = float64(time.Microsecond)

// goals are the project's goals. They are never lowered: one that is out of reach stays in
// the table as not reached.
var goals = []goal{
	{"batch-relaxed", "", "client's processor time", client, []Keys{Even}, []int{512}, 4 * microsecond, true},
	{"batch-relaxed", "", "client's processor time", client, []Keys{Hot}, []int{512}, 1.1 * microsecond, true},
	{"batch-relaxed", "", "server's processor time", server, []Keys{Even}, []int{512}, 11 * microsecond, true},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Even}, []int{16}, 0.8, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Even}, []int{128}, 1.1, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Even}, []int{512}, 1.3, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Hot}, []int{128}, 5, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Hot}, []int{512}, 10, false},
	{"batch-relaxed", "redis_rate", "throughput", perSecond, []Keys{Even}, []int{16}, 1, false},
	{"batch-relaxed", "redis_rate", "throughput", perSecond, []Keys{Even}, []int{128, 512}, 2, false},
	{"single-relaxed", "bare-off", "throughput", perSecond, allKeys, []int{1, 16, 128}, 0.8, false},
	{"single-durable", "bare-on", "throughput", perSecond, allKeys, []int{1, 16, 128}, 0, false},
	{"batch-durable", "single-durable", "throughput", perSecond, []Keys{Hot}, []int{128}, 50, false},
	{"batch-durable", "single-durable", "throughput", perSecond, []Keys{Even}, []int{128}, 4, false},
	{"amounts-batch", "amounts-single", "throughput", perSecond, []Keys{Amounts}, []int{128}, 10, false},
	{"batch-relaxed", "bare-off", "p50", p50, allKeys, []int{1}, 1.2, true},
	{"batch-relaxed", "single-relaxed", "p50", p50, allKeys, []int{1}, 1.1, true},
	{"batch-relaxed", "redis_rate", "p50", p50, allKeys, []int{1}, 1.4, true},
}

// reach is a goal's result in one cell.
type reach struct {
	goal
	keys    Keys
	callers int
	values  []float64 // one per round, sorted; none if the system does not report the figure
}

// reaches returns every goal whose contenders took part.
func (r *Run) reaches() (list []reach) {
	for _, g := range goals {
		for _, k := range g.keys {
			for _, n := range g.callers {
				if over, under := r.cell(k, n, g.over), r.cell(k, n, g.under); over != nil && (under != nil || g.under == "") {
					list = append(list, reach{g, k, n, g.values(over, under)})
				}
			}
		}
	}
	return list
}

// values returns the goal's figure by round, sorted.
func (g *goal) values(over, under *Cell) []float64 {
	values := over.each(g.figure)
	if under != nil {
		for i, v := range under.each(g.figure) {
			values[i] /= v
		}
	} else if slices.Contains(values, measure.Unknown) {
		return nil
	}
	slices.Sort(values)
	return values
}

// Missing describes the goals of which a cell is missing.
func (r *Run) Missing() (list []string) {
	for _, g := range goals {
		for _, k := range g.keys {
			for _, n := range g.callers {
				if r.cell(k, n, g.over) == nil || g.under != "" && r.cell(k, n, g.under) == nil {
					list = append(list, fmt.Sprintf("%s, %s, %d callers", g.what(), k, n))
				}
			}
		}
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

// format writes a value of the goal: a ratio, or a time.
func (g *goal) format(v float64) string {
	if g.under == "" {
		return span(time.Duration(math.Round(v)))
	}
	return ratio(v)
}

// The verdicts on a goal.
const (
	isReached    = "reached"
	isNotReached = "**not reached**"
	isReported   = "reported only"
	isUnknown    = "unknown here"
)

func verdict(reached bool) string {
	if reached {
		return isReached
	}
	return isNotReached
}

// row returns the goal's target, median, range and verdict.
func (r *reach) row() (want, middle, extent, result string) {
	want = "≥ " + r.format(r.want)
	if r.atMost {
		want = "≤ " + r.format(r.want)
	}
	if len(r.values) == 0 {
		return want, "", "", isUnknown
	}
	m := median(r.values)
	middle, extent = r.format(m), r.format(r.values[0])+" to "+r.format(r.values[len(r.values)-1])
	switch {
	case r.want == 0:
		return "", middle, extent, isReported
	case r.atMost:
		return want, middle, extent, verdict(m <= r.want)
	}
	return want, middle, extent, verdict(m >= r.want)
}

// Bounds for a cached denial: less than a microsecond, and no allocation.
const wantDenial = 1000 // ns

// denial returns the row of the cached denial: its median cost and the verdict.
func (r *Run) denial() (ns, allocs float64, result string) {
	var times, counts []float64
	for _, d := range r.Denials {
		times, counts = append(times, d.Nanoseconds), append(counts, d.Allocs)
	}
	ns, allocs = median(times), median(counts)
	// Other allocations of the process in that time are far below one in a thousand.
	return ns, allocs, verdict(ns < wantDenial && allocs < 0.001)
}

// goals writes the project's goals, and whether they were reached.
func (r *Run) goals(p *page) {
	reaches := r.reaches()
	if len(reaches) == 0 && len(r.Denials) == 0 {
		return
	}
	p.line("## Goals")
	p.line("")
	p.line("A / B is the ratio between two contenders within the same round. The median of the rounds")
	p.line("decides. Processor time is that of one decision. The contenders are described under")
	p.line("[Settings](#settings); the deny cache is off except for the cached denial.")
	p.line("")
	p.table("Of", "What", "Keys", ">Callers", ">Goal", ">Median", ">Least to most", "")
	for _, x := range reaches {
		want, middle, extent, result := x.row()
		p.row(x.name, x.what(), r.label(x.keys), count(float64(x.callers)), want, middle, extent, result)
	}
	if len(r.Denials) > 0 {
		ns, allocs, result := r.denial()
		p.row("time", "a denial from the cache", r.label(Hot), "1", "< 1 µs, 0 allocations",
			span(time.Duration(ns)), strconv.FormatFloat(allocs, 'f', 2, 64)+" allocations", result)
	}
	p.line("")
}
