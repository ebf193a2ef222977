package report

import (
	"slices"

	"github.com/pglimit/pglimit/bench/measure"
)

// goal is a ratio between two contenders, round by round, and what it has to
// be.
type goal struct {
	over    string // the contender above the line of the ratio
	under   string // and below
	name    string // of the figure
	figure  func(measure.Sample) float64
	keys    []Keys
	callers []int
	want    float64 // 0: only told
	atMost  bool
}

var allKeys = []Keys{Hot, Even, Zipf}

// goals are what the project set out to reach.
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

// reach is how far one goal was reached in one cell.
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

// reaches is every goal whose two contenders took part.
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

// What a cached denial may cost: less than a microsecond, and no allocation.
const wantDenial = 1000 // ns

// denial is the median cost of a cached denial, and whether it is as wanted.
func (r *Run) denial() (ns, allocs float64, reached bool) {
	var times, counts []float64
	for _, d := range r.Denials {
		times, counts = append(times, d.Nanoseconds), append(counts, d.Allocs)
	}
	ns, allocs = median(times), median(counts)
	// What else the process allocates in that time is far below one in a
	// thousand.
	return ns, allocs, ns < wantDenial && allocs < 0.001
}
