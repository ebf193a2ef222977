package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Markdown writes the run as a page. chart is the chart's file, relative to the page; ""
// leaves it out.
func (r *Run) Markdown(w io.Writer, chart string) error {
	p := page{w: w}
	p.line("# Benchmark")
	p.line("")
	if r.Quick {
		p.line("**A quick look: too short to judge by.** `make bench` without QUICK takes its time.")
		p.line("")
	}
	rounds := "rounds"
	if r.Rounds == 1 {
		rounds = "round"
	}
	p.linef("Made by `make bench`: the contenders in turn within each round, %d %s, %s for each", r.Rounds, rounds, span(r.Duration))
	p.linef("contender and round after %s of warming up; values are medians of the rounds.", span(r.Warmup))
	p.line("Callers, PostgreSQL and Redis share the one machine, so read the ratios. Callers send")
	p.line("again as soon as they are answered. Limits are so high that every decision allows. Before,")
	p.line("each contender allowed 10 of 20 at a limit of 10, and after each cell it had")
	p.line("counted what it allowed of the first key. Allocations are the whole process's, per decision.")
	p.line("")
	r.goals(&p)
	if chart != "" {
		p.linef("![decisions per second by contender and callers](%s)", chart)
		p.line("")
	}
	r.facts(&p)
	for _, k := range allKeys {
		r.cells(&p, k)
	}
	r.logs(&p)
	return p.err
}

// goals writes the project's goals, and whether they were reached.
func (r *Run) goals(p *page) {
	reaches := r.reaches()
	if len(reaches) == 0 && len(r.Denials) == 0 {
		return
	}
	p.line("## Goals")
	p.line("")
	p.line("Each is a ratio between two contenders within the same round; the rounds' median decides.")
	p.line("Who they are stands below. The deny cache is off but for the cached denial.")
	p.line("")
	p.table("Of", "What", "Keys", ">Callers", ">Goal", ">Median", ">Least to most", "")
	for _, x := range reaches {
		want, verdict := "≥ "+ratio(x.want), "**not reached**"
		if x.atMost {
			want = "≤ " + ratio(x.want)
		}
		switch {
		case x.want == 0:
			want, verdict = "", "reported only"
		case x.reached():
			verdict = "reached"
		}
		p.row(x.name, x.over+" / "+x.under, r.label(x.keys), count(float64(x.callers)), want, ratio(x.median()),
			ratio(x.ratios[0])+" to "+ratio(x.ratios[len(x.ratios)-1]), verdict)
	}
	if len(r.Denials) > 0 {
		ns, allocs, reached := r.denial()
		verdict := "**not reached**"
		if reached {
			verdict = "reached"
		}
		p.row("time", "a denial from the cache", r.label(Hot), "1", "< 1 µs, 0 allocations",
			span(time.Duration(ns)), strconv.FormatFloat(allocs, 'f', 2, 64)+" allocations", verdict)
	}
	p.line("")
}

// facts writes versions, settings and the contenders.
func (r *Run) facts(p *page) {
	p.line("## Setting")
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
var figures = []string{">Decisions/s", ">Least to most", ">p50", ">p99", ">Allocations"}

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
		strconv.FormatFloat(median(c.each(allocs)), 'f', 1, 64),
	}
}

// label is the tables' name of a way to choose keys.
func (r *Run) label(k Keys) string {
	switch k {
	case Hot:
		return "one hot key"
	case Even:
		return count(float64(r.KeyCount)) + " keys evenly"
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
