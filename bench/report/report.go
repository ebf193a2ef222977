// Package report renders the results of a benchmark run as a page of Markdown and a chart.
package report

import (
	"maps"
	"slices"
	"strings"
)

// Run is a whole run.
type Run struct {
	// Quick means that the run was too short to be judged.
	Quick bool
	// Notes say how was measured, and Facts are versions and settings.
	Notes    []string
	Facts    []Fact
	Sections []Section
	Cells    []*Cell
}

// Fact is a name and what it stands for.
type Fact struct{ Name, Value string }

// Section is a table of results, with a row for each contender and a column for each
// setting. It is left out if no cell was measured.
type Section struct {
	Name, Title, Note string
	// By names the settings. Figure is shown at each, and More at the last one.
	By     string
	Figure Figure
	More   []Figure
}

// The sections that the chart draws.
const (
	Hot  = "hot"  // all callers use one key
	Even = "even" // all keys are equally likely
)

// Cell is one contender at one setting of a section, such as a number of callers.
type Cell struct {
	Section, Contender, Setting string
	Rounds                      []Figures
}

// Name identifies the cell.
func (c *Cell) Name() string { return c.Section + "/" + c.Contender + "/" + c.Setting }

// Figure names a measurement, as tables show it. Times are in nanoseconds.
type Figure string

// The figures that are not only numbers, or that goals name.
const (
	PerSecond Figure = "decisions/s"
	Mean      Figure = "mean"
	P50       Figure = "p50"
	P99       Figure = "p99"
	P999      Figure = "p99.9"
	Late      Figure = "of it the clock"
	Client    Figure = "client"
	Service   Figure = "service"
	Server    Figure = "server"
	Allocs    Figure = "allocations"
	// Of keys with leases: parts of the decisions, of the units that may pass, and of a share.
	Lent       Figure = "from leases"
	Statements Figure = "statements"
	Admitted   Figure = "admitted"
	Poorest    Figure = "poorest"
)

// Format writes a value.
func (f Figure) Format(v float64) string {
	switch f {
	case Mean, P50, P99, P999, Late, Client, Service, Server:
		return span(v)
	}
	return ratio(v)
}

// Figures are a cell's measurements in one round. What the system does not report is
// missing.
type Figures map[Figure]float64

// String is such as "p50 1.2 ms, p99 3 ms", by name.
func (f Figures) String() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		list = append(list, string(name)+" "+name.Format(f[name]))
	}
	return strings.Join(list, ", ")
}

// each returns one figure of every round; nothing if it is missing in one.
func (c *Cell) each(f Figure) (values []float64) {
	for _, r := range c.Rounds {
		v, ok := r[f]
		if !ok {
			return nil
		}
		values = append(values, v)
	}
	return values
}

// cell finds a cell; nil if it was left out.
func (r *Run) cell(section, contender, setting string) *Cell {
	i := slices.IndexFunc(r.Cells, func(c *Cell) bool {
		return c.Section == section && c.Contender == contender && c.Setting == setting
	})
	if i < 0 {
		return nil
	}
	return r.Cells[i]
}

// Median is the middle value, or the mean of the two in the middle. values must not be
// empty.
func Median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
