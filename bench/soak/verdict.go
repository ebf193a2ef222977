package soak

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/bench/report"
)

// Outcome is everything that a run measured.
type Outcome struct {
	plan       plan
	conditions string
	readings   []*reading // the first is of the warm-up's end
	overdue    overdue
	goroutines [2]int // before anything was opened, and after everything was closed
	verdicts   []verdict
}

// verdict is whether one thing stayed within its bound.
type verdict struct {
	name        string
	first, last string // in the first and the last part; first is "" if there is one figure
	bound       string
	passed      bool
}

// leastHOT is the least share of decisions' updates in place.
const leastHOT = 95

// judge compares the first part, which begins after the warm-up, with the last one.
func (o *Outcome) judge() {
	middle, most, least := report.Median, slices.Max[[]float64], slices.Min[[]float64]
	o.grows(heap, middle, 1.1, 2)
	o.grows(resident, middle, 1.25, 16)
	o.grows(serverOwn, middle, 1.25, 16)
	o.grows(goroutines, least, 1, 0)
	o.grows(rows, most, 1.15, 0)
	o.grows(size, most, 1.5, 0) // tables and indexes reuse their space
	o.grows(report.P99, middle, 1.5, 0)

	start, end := o.readings[0], o.readings[len(o.readings)-1]
	o.add("HOT updates of decisions, %", "", hot.Format(end.Figures[hot]), fmt.Sprint("at least ", leastHOT), end.Figures[hot] >= leastHOT)
	came := end.Figures[arrived] - start.Figures[arrived]
	o.add("keys that arrived", "", report.Count(came), fmt.Sprintf("at least %d, less 1 %%", o.plan.keys), came >= 0.99*float64(o.plan.keys))
	o.add("goroutines when all is closed", strconv.Itoa(o.goroutines[0]), strconv.Itoa(o.goroutines[1]), "as before it was opened", o.goroutines[1] <= o.goroutines[0])
	r := o.overdue
	o.add("rows that should be gone", "", fmt.Sprintf("%d of %d", r.late+r.odd, r.rows),
		fmt.Sprintf("none (empty for at most %v, allowed %v) %s", r.oldest.Round(time.Second), r.allowed.Round(time.Second), r.example),
		r.rows > 0 && r.late+r.odd == 0)
}

// grows compares a figure of the readings in the first and in the last part. The system may
// not report it.
func (o *Outcome) grows(f report.Figure, of func([]float64) float64, times, slack float64) {
	var first, last []float64
	for _, r := range o.readings[1:] {
		v, ok := r.Figures[f]
		if !ok {
			return
		}
		if r.at <= o.plan.part {
			first = append(first, v)
		}
		if r.at > o.plan.length-o.plan.part {
			last = append(last, v)
		}
	}
	a, b := of(first), of(last)
	bound := fmt.Sprint(times, " times")
	if slack > 0 {
		bound += fmt.Sprint(" and ", slack)
	}
	o.add(string(f), f.Format(a), f.Format(b), bound, b <= times*a+slack)
}

func (o *Outcome) add(name, first, last, bound string, passed bool) {
	o.verdicts = append(o.verdicts, verdict{name, first, last, bound, passed})
}

// Passed reports whether nothing grew.
func (o *Outcome) Passed() bool {
	return len(o.verdicts) > 0 && !slices.ContainsFunc(o.verdicts, func(v verdict) bool { return !v.passed })
}

// Markdown returns the report.
func (o *Outcome) Markdown() string {
	var p report.Page
	plan := o.plan
	p.Line("## Soak\n")
	if plan.quick {
		p.Line("**A quick run: it shows that the soak works, and settles nothing.**\n")
	}
	p.Line(fmt.Sprintf("One run of `make soak` on %s. %d callers try to send %d requests a second for %v after a warm-up of %v; %d keys arrive meanwhile. "+
		"The limiter's and the janitor's clock is %d times as fast as the real one. The janitor sweeps every %v of real time.\n",
		o.conditions, callers, plan.rate, plan.length, plan.warm, plan.keys, plan.speed, plan.sweep))
	p.Table("", ">first "+plan.part.String(), ">last "+plan.part.String(), "bound", "")
	for _, v := range o.verdicts {
		word := "ok"
		if !v.passed {
			word = "**failed**"
		}
		p.Row(v.name, v.first, v.last, v.bound, word)
	}
	p.Line("")
	head := []string{"at"}
	for _, f := range columns {
		head = append(head, ">"+string(f))
	}
	p.Table(head...)
	for _, r := range o.readings {
		row := []string{r.at.String()}
		for _, f := range columns {
			cell := ""
			if v, ok := r.Figures[f]; ok {
				cell = f.Format(v)
			}
			row = append(row, cell)
		}
		p.Row(row...)
	}
	p.Line("\nAt the end:\n")
	p.Table("table", ">rows", ">dead", ">table MB", ">indexes MB", ">updates", ">HOT", ">autovacuum runs")
	for _, t := range o.readings[len(o.readings)-1].tables {
		row := []string{t.Name}
		for _, v := range []float64{float64(t.rows), float64(t.Dead), float64(t.Bytes) / mb, float64(t.Indexes) / mb, float64(t.Updates), float64(t.HOT), float64(t.Vacuums)} {
			row = append(row, size.Format(v))
		}
		p.Row(row...)
	}
	return p.String()
}
