package report

import (
	"slices"

	"github.com/pglimit/pglimit/bench/measure"
)

// goal is a ratio between two contenders, round by round, and its target.
type goal struct {
	over    string // the contender in the numerator
	under   string // and in the denominator
	name    string // of the figure
	figure  func(measure.Sample) float64
	keys    []Keys
	callers []int
	want    float64 // 0: only reported
	atMost  bool
}

var allKeys = []Keys{Hot, Even, Zipf}

// goals are the project's goals.
var goals = []goal{
	{"single-relaxed", "bare-off", "throughput", perSecond, allKeys, []int{1, 16, 128}, 0.8, false},
	{"single-durable", "bare-on", "throughput", perSecond, allKeys, []int{1, 16, 128}, 0, false},
	{"batch-relaxed", "redis_rate", "throughput", perSecond, []Keys{Even}, []int{16}, 1, false},
	{"batch-relaxed", "redis_rate", "throughput", perSecond, []Keys{Even}, []int{128, 512}, 2, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Even}, []int{128, 512}, 1, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Hot}, []int{128}, 4, false},
	{"batch-relaxed", "lua-rueidis", "throughput", perSecond, []Keys{Hot}, []int{512}, 9, false},
	{"batch-durable", "single-durable", "throughput", perSecond, []Keys{Hot}, []int{128}, 50, false},
	{"batch-durable", "single-durable", "throughput", perSecond, []Keys{Even}, []int{128}, 4, false},
	{"batch-relaxed", "single-relaxed", "p50", p50, allKeys, []int{1}, 1.1, true},
	{"batch-relaxed", "redis_rate", "p50", p50, allKeys, []int{1}, 1.4, true},
}

// reach is a goal's result in one cell.
type reach struct {
	goal
	keys    Keys
	callers int
	ratios  []float64 // sorted
}

func (r *reach) median() float64 { return median(r.ratios) }

func (r *reach) reached() bool {
	if r.atMost {
		return r.median() <= r.want
	}
	return r.median() >= r.want
}

// reaches returns every goal whose two contenders took part.
func (r *Run) reaches() (list []reach) {
	for _, g := range goals {
		for _, k := range g.keys {
			for _, n := range g.callers {
				over, under := r.cell(k, n, g.over), r.cell(k, n, g.under)
				if over == nil || under == nil {
					continue
				}
				ratios := make([]float64, len(over.Samples))
				for i := range ratios {
					ratios[i] = g.figure(over.Samples[i]) / g.figure(under.Samples[i])
				}
				slices.Sort(ratios)
				list = append(list, reach{g, k, n, ratios})
			}
		}
	}
	return list
}

// Bounds for a cached denial: less than a microsecond, and no allocation.
const wantDenial = 1000 // ns

// denial returns the median cost of a cached denial, and whether it is within the bounds.
func (r *Run) denial() (ns, allocs float64, reached bool) {
	var times, counts []float64
	for _, d := range r.Denials {
		times, counts = append(times, d.Nanoseconds), append(counts, d.Allocs)
	}
	ns, allocs = median(times), median(counts)
	// Other allocations of the process in that time are far below one in a thousand.
	return ns, allocs, ns < wantDenial && allocs < 0.001
}
