package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// Markdown writes the run as a page: the chart, the goals, the settings and the cells.
// chart is the chart's file, relative to the page; "" leaves it out.
func (r *Run) Markdown(w io.Writer, chart string) error {
	p := page{w: w}
	p.line("# Benchmark")
	p.line("")
	if r.Quick {
		p.line("**A quick look: too short to judge by.** `make bench` without QUICK takes its time.")
		p.line("")
	}
	if chart != "" {
		p.linef("![%s](%s)", r.alt(), chart)
		p.line("")
	}
	r.goals(&p)
	r.settings(&p)
	for _, k := range append(allKeys, Amounts) {
		r.cells(&p, k)
	}
	r.logs(&p)
	return p.err
}

// settings writes how was measured, versions, and the contenders.
func (r *Run) settings(p *page) {
	rounds := "rounds"
	if r.Rounds == 1 {
		rounds = "round"
	}
	p.line("## Settings")
	p.line("")
	p.linef("Made by one run of `make bench`: the contenders in turn within each round, %d %s, %s for each", r.Rounds, rounds, span(r.Duration))
	p.linef("contender and round after %s of warming up. Values are medians of the rounds.", span(r.Warmup))
	p.line("")
	p.line("- Callers, PostgreSQL and Redis share the one machine, so read the ratios.")
	p.line("- Callers send again as soon as they are answered. Limits are so high that every decision allows.")
	p.line("- Client is the processor time of this process per decision, by getrusage. Server is that of the")
	p.line("  server that decides: all processes of PostgreSQL, or Redis.")
	if r.unknown() {
		p.line("  \"unknown\": this system does not report it. It needs getrusage for the client and Linux's")
		p.line("  /proc for the server.")
	}
	p.line("- Allocations are the whole process's, per decision.")
	p.line("- Before, each contender allowed 10 of 20 at a limit of 10, or of 20 different amounts as much as")
	p.line("  fits. After each cell it had counted what it allowed of the first key.")
	p.line("")
	p.table("", "")
	for _, f := range r.Facts {
		p.row(f.Name, f.Value)
	}
	p.line("")
	p.table("Contender", "What it is", "Decides in", "On disk once it answers")
	for _, c := range r.Contenders {
		p.row(c.ID, c.What, c.Server, c.Keeps)
	}
	p.line("")
}

// unknown reports whether any processor time is unknown.
func (r *Run) unknown() bool {
	for _, c := range r.all() {
		if slices.Contains(c.each(client), measure.Unknown) || slices.Contains(c.each(server), measure.Unknown) {
			return true
		}
	}
	return false
}

// cells writes one table of results.
func (r *Run) cells(p *page, k Keys) {
	head := false
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Keys != k {
			continue
		}
		if !head {
			p.line("## " + strings.ToUpper(r.label(k)[:1]) + r.label(k)[1:])
			p.line("")
			p.table(append([]string{">Callers", "Contender"}, figures...)...)
			head = true
		}
		p.row(append([]string{count(float64(c.Callers)), c.Contender}, c.figures()...)...)
	}
	if head {
		p.line("")
	}
}

// logs writes the table of sliding logs.
func (r *Run) logs(p *page) {
	if len(r.Logs) == 0 {
		return
	}
	p.line("## Sliding log")
	p.line("")
	p.line("Each log is half full when a cell begins, spread over the minute that the limit is")
	p.line("for. Keys are requested evenly; the higher the limit, the fewer, so that all logs")
	p.line("together are as large.")
	p.line("")
	p.table(append([]string{">Limit", ">Keys", ">Callers", "Contender"}, figures...)...)
	for i := range r.Logs {
		c := &r.Logs[i]
		p.row(append([]string{count(float64(c.Limit)), count(float64(c.KeyCount)), count(float64(c.Callers)), c.Contender}, c.figures()...)...)
	}
	p.line("")
}

// figures are the columns that every table of results has.
var figures = []string{">Decisions/s", ">Least to most", ">p50", ">p99", ">Client", ">Server", ">Allocations"}

// figures is the row's cells in those columns: medians of the rounds.
func (c *Cell) figures() []string {
	rates := c.each(perSecond)
	least, most := rates[0], rates[0]
	for _, v := range rates {
		least, most = min(least, v), max(most, v)
	}
	return []string{
		count(median(rates)), count(least) + " to " + count(most),
		span(time.Duration(median(c.each(p50)))), span(time.Duration(median(c.each(p99)))),
		used(c.each(client)), used(c.each(server)),
		strconv.FormatFloat(median(c.each(allocs)), 'f', 1, 64),
	}
}

// used is the median of processor times in nanoseconds, or that they are unknown.
func used(values []float64) string {
	if slices.Contains(values, measure.Unknown) {
		return "unknown"
	}
	return span(time.Duration(math.Round(median(values))))
}

// label is the tables' name of a way to choose keys.
func (r *Run) label(k Keys) string {
	switch k {
	case Hot:
		return "one hot key"
	case Even:
		return count(float64(r.KeyCount)) + " keys evenly"
	case Amounts:
		return "one hot key, amounts that differ"
	}
	return count(float64(r.KeyCount)) + " keys, Zipf"
}

// page writes lines until one fails.
type page struct {
	w   io.Writer
	err error
}

func (p *page) line(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, s+"\n")
	}
}

func (p *page) linef(format string, args ...any) { p.line(fmt.Sprintf(format, args...)) }

// table begins a table; a column whose name begins with > is right-aligned.
func (p *page) table(columns ...string) {
	rule := make([]string, len(columns))
	for i, c := range columns {
		rule[i] = "---"
		if name, right := strings.CutPrefix(c, ">"); right {
			columns[i], rule[i] = name, "--:"
		}
	}
	p.row(columns...)
	p.row(rule...)
}

func (p *page) row(cells ...string) { p.line("| " + strings.Join(cells, " | ") + " |") }
