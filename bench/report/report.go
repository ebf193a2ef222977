// Package report renders the results of a benchmark run as a page of Markdown and a chart.
package report

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// Keys is how callers choose among keys.
type Keys string

// The ways to choose.
const (
	Hot     Keys = "hot"     // all callers use one key
	Even    Keys = "even"    // all keys are equally likely
	Zipf    Keys = "zipf"    // few often, most rarely
	Amounts Keys = "amounts" // one key, and every request another amount
)

// Run is a whole run.
type Run struct {
	// Quick means that the run was too short to be judged.
	Quick            bool
	Rounds           int
	Warmup, Duration time.Duration // of a cell in a round
	KeyCount         int           // of Even and Zipf
	// Facts are the versions and settings, in the order to show them.
	Facts      []Fact
	Contenders []Contender
	// Cells are the results by Keys, and Logs those of sliding logs.
	Cells []Cell
	Logs  []LogCell
	// Denials are the rounds of the cached denial; none if it was left out.
	Denials []Denial
}

// Fact is one line about the machine, a server or a library.
type Fact struct{ Name, Value string }

// Contender describes a contender.
type Contender struct{ ID, What, Server, Keeps string }

// Cell is one contender at one way to choose keys and one number of callers.
type Cell struct {
	Keys      Keys
	Callers   int
	Contender string
	Samples   []measure.Sample // one per round
}

// LogCell is one contender at one limit of a sliding log.
type LogCell struct {
	Limit, KeyCount int
	Cell
}

// Denial is the cost of a cached denial in one round.
type Denial struct {
	Nanoseconds float64
	Allocs      float64
}

// cell finds a cell; nil if it was left out.
func (r *Run) cell(k Keys, callers int, contender string) *Cell {
	i := slices.IndexFunc(r.Cells, func(c Cell) bool {
		return c.Keys == k && c.Callers == callers && c.Contender == contender
	})
	if i < 0 {
		return nil
	}
	return &r.Cells[i]
}

// all returns every cell, those of sliding logs included.
func (r *Run) all() (list []*Cell) {
	for i := range r.Cells {
		list = append(list, &r.Cells[i])
	}
	for i := range r.Logs {
		list = append(list, &r.Logs[i].Cell)
	}
	return list
}

// median is the middle value, or the mean of the two in the middle. values
// must not be empty.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// each returns one figure of every round.
func (c *Cell) each(figure func(measure.Sample) float64) []float64 {
	values := make([]float64, len(c.Samples))
	for i, s := range c.Samples {
		values[i] = figure(s)
	}
	return values
}

// The figures of a sample.
var (
	perSecond = measure.Sample.PerSecond
	p50       = func(s measure.Sample) float64 { return float64(s.P50) }
	p99       = func(s measure.Sample) float64 { return float64(s.P99) }
	allocs    = func(s measure.Sample) float64 { return s.Allocs }
	client    = func(s measure.Sample) float64 { return s.Client }
	server    = func(s measure.Sample) float64 { return s.Server }
)
