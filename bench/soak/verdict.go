package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// outcome is everything that a run measured.
type outcome struct {
	plan plan
	// first and last are the durations of the requests of the first and the last part.
	first, last *hdrhistogram.Histogram

	When       time.Time
	Go         string
	PostgreSQL string
	CPUs       int

	Readings []reading // the first is of the warm-up's end
	Cached   int64     // requests that the process answered from memory
	Bounds   bounds
	Overdue  overdue
	// Goroutines before anything was opened, and after everything was closed.
	GoroutinesBefore int
	GoroutinesAfter  int

	Verdicts []verdict
}

// verdict is whether one thing stayed within its bound.
type verdict struct {
	Name   string
	First  string // in the first part; "" if there is one figure
	Last   string
	Bound  string
	Passed bool
}

// The bounds. Each compares the last part with the first, which begins after the warm-up.
const (
	mostP99     = 1.5  // times
	mostHeap    = 1.1  // times, and slackHeap
	mostProcess = 1.25 // times: resident memory of this process and the server's own, and slackProcess
	mostRows    = 1.15 // times
	mostBytes   = 1.5  // times: tables and indexes, which reuse their space
	leastHOT    = 0.95 // of all updates

	slackHeap    = 2 << 20
	slackProcess = 16 << 20
)

// judge compares the first part with the last one.
func (o *outcome) judge() {
	first, last := o.parts()
	most := func(of []reading, f func(reading) int64) int64 { return slices.Max(figures(of, f)) }
	memory := func(name string, f func(reading) int64, times float64, slack int64) {
		a, b := median(figures(first, f)), median(figures(last, f))
		o.add(name+", MB", megabytes(a), megabytes(b), fmt.Sprintf("%v times and %s MB", times, megabytes(slack)),
			a < 0 || float64(b) <= times*float64(a)+float64(slack))
	}
	memory("heap", func(r reading) int64 { return r.Memory.Heap }, mostHeap, slackHeap)
	memory("resident memory", func(r reading) int64 { return r.Memory.Resident }, mostProcess, slackProcess)
	memory("server's own memory", func(r reading) int64 { return r.Memory.ServerOwn }, mostProcess, slackProcess)

	goroutines := func(r reading) int64 { return int64(r.Goroutines) }
	a, b := slices.Min(figures(first, goroutines)), slices.Min(figures(last, goroutines))
	o.add("goroutines, least", grouped(a), grouped(b), "no more", b <= a)
	o.add("goroutines when all is closed", grouped(int64(o.GoroutinesBefore)), grouped(int64(o.GoroutinesAfter)), "as before it was opened", o.GoroutinesAfter <= o.GoroutinesBefore)

	a, b = most(first, reading.rows), most(last, reading.rows)
	o.add("rows, most", grouped(a), grouped(b), fmt.Sprintf("%v times", mostRows), float64(b) <= mostRows*float64(a))
	a, b = most(first, reading.bytes), most(last, reading.bytes)
	o.add("tables and indexes, MB, most", megabytes(a), megabytes(b), fmt.Sprintf("%v times", mostBytes), float64(b) <= mostBytes*float64(a))
	o.add("rows that should be gone", "", fmt.Sprintf("%s of %s", grouped(o.Overdue.Late+o.Overdue.Odd), grouped(o.Overdue.Rows)),
		fmt.Sprintf("none (empty for at most %v, allowed %v) %s", o.Overdue.Oldest.Round(time.Second), o.Overdue.Allowed.Round(time.Second), o.Overdue.Example),
		o.Overdue.Rows > 0 && o.Overdue.Late+o.Overdue.Odd == 0)

	start, end := o.Readings[0], o.Readings[len(o.Readings)-1]
	hot := end.hotSince(start)
	o.add("HOT updates of decisions, %", percent(first[len(first)-1].hotSince(start)), percent(last[len(last)-1].hotSince(o.Readings[len(o.Readings)-1-len(last)])),
		fmt.Sprintf("%s in all, at least %s", percent(hot), percent(leastHOT)), hot >= leastHOT)

	p99 := func(h *hdrhistogram.Histogram) time.Duration { return time.Duration(h.ValueAtQuantile(99)) }
	o.add("p99 of a request", p99(o.first).Round(time.Microsecond).String(), p99(o.last).Round(time.Microsecond).String(), fmt.Sprintf("%v times", mostP99),
		o.first.TotalCount() > 0 && o.last.TotalCount() > 0 && float64(p99(o.last)) <= mostP99*float64(p99(o.first)))
	arrived := end.Keys - start.Keys
	o.add("keys that arrived", "", grouped(arrived), fmt.Sprintf("at least %s, less 1 %%", grouped(int64(o.plan.Keys))), float64(arrived) >= 0.99*float64(o.plan.Keys))
	exceeded := fmt.Sprintf("%d of %d (%s admissions, %s denials)", len(o.Bounds.Exceeded), o.Bounds.Keys, grouped(o.Bounds.Admitted), grouped(o.Bounds.Denied))
	o.add("watched keys above their limit", "", exceeded, "none, and there are both", len(o.Bounds.Exceeded) == 0 && o.Bounds.Admitted > 0 && o.Bounds.Denied > 0)
}

func (o *outcome) add(name, first, last, bound string, passed bool) {
	o.Verdicts = append(o.Verdicts, verdict{name, first, last, bound, passed})
}

// passed reports whether all verdicts are.
func (o *outcome) passed() bool {
	return len(o.Verdicts) > 0 && !slices.ContainsFunc(o.Verdicts, func(v verdict) bool { return !v.Passed })
}

// parts returns the readings of the first and of the last part.
func (o *outcome) parts() (first, last []reading) {
	for _, r := range o.Readings[1:] {
		if r.At <= o.plan.Part {
			first = append(first, r)
		}
		if r.At > o.plan.Length-o.plan.Part {
			last = append(last, r)
		}
	}
	return first, last
}

func figures(of []reading, f func(reading) int64) (all []int64) {
	for _, r := range of {
		all = append(all, f(r))
	}
	return all
}

// median returns the middle figure; for an even number the mean of the middle two.
func median(of []int64) int64 {
	sorted := slices.Sorted(slices.Values(of))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return int64(math.Round(float64(sorted[half-1])/2 + float64(sorted[half])/2))
}
