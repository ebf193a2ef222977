package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is all measurements.
type report struct {
	plan                 plan
	When                 time.Time
	PostgreSQL, Settings string
	Trips                int64 // of a spend in a transaction
	Cells                []*cell
}

// The project's goals.
const (
	mostOfASpend  = 1.15 // times a bare upsert's time
	leastOfTwo    = 0.95 // times the throughput of two bare upserts
	wantSpendTrip = 1
)

// markdown returns the report as Markdown.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## Limits that commit with the business\n\n")
	if r.plan.Quick {
		fmt.Fprintf(&b, "**A quick run: it shows that the measurement works, and settles nothing.**\n\n")
	}
	fmt.Fprintf(&b, "Measured on %s by `make bench-spend`: PostgreSQL %s, %s, %s/%s with %d CPUs for server and callers; the server's\nsettings: %s.\n\n",
		r.When.Format(time.DateOnly), r.PostgreSQL, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), r.Settings)
	fmt.Fprintf(&b, "Contenders take turns, %d rounds of %v after %v of warming up, each caller again as soon as it has its answer; the figures\nare medians of the rounds, the ratios medians of those within a round. All share one pool of 16 connections. After each turn what was\ncounted is held against what was allowed.\n",
		r.plan.Rounds, r.plan.Length, r.plan.Warmup)
	var reached []string
	for _, c := range r.Cells {
		fmt.Fprintf(&b, "\n### %s, %d callers, synchronous_commit = %s\n\n", c.What, c.Callers, c.Commit)
		fmt.Fprintf(&b, "| what | transactions/s | times | p50 ms | p99 ms | the counting alone, p50 ms | times |\n|---|--:|--:|--:|--:|--:|--:|\n")
		for i, contender := range c.Contenders {
			counting, times := "", ""
			if !c.Two {
				counting = milliseconds(median(c.Counting[i]))
				times = fmt.Sprintf("%.2f", c.countingRatio(i))
			}
			fmt.Fprintf(&b, "| %s | %.0f | %.2f | %s | %s | %s | %s |\n", contender.What,
				median(c.figures(i, c.perSecond)), median(c.ratios(i)),
				milliseconds(time.Duration(median(c.figures(i, c.p50)))), milliseconds(time.Duration(median(c.figures(i, c.p99)))), counting, times)
		}
		reached = append(reached, c.reach(r.Trips)...)
	}
	fmt.Fprintf(&b, "\nReach:\n\n")
	for _, line := range reached {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	return b.String()
}

// reach reports how far the cell's goal was reached.
func (c *cell) reach(trips int64) []string {
	if !c.Two {
		whole := c.figures(1, func(i, round int) float64 { return c.p50(i, round) / c.p50(0, round) })
		return []string{
			fmt.Sprintf("a transaction with a spend, %d callers: p50 at most %v times that of one with a bare upsert, the spend in %d round trip: %s times, in %d: %s",
				c.Callers, mostOfASpend, wantSpendTrip, extent(whole), trips, verdict(median(whole) <= mostOfASpend && trips == wantSpendTrip)),
			fmt.Sprintf("the spend alone, %d callers: %.2f times a bare upsert alone", c.Callers, c.countingRatio(1)),
		}
	}
	ratios := c.ratios(1)
	return []string{fmt.Sprintf("AllowAll of two of ten hot keys, %d callers, synchronous_commit = %s: at least %v of two sorted bare upserts in a transaction of four round trips: %s: %s",
		c.Callers, c.Commit, leastOfTwo, extent(ratios), verdict(median(ratios) >= leastOfTwo))}
}

// extent writes the median with the least and the most.
func extent(ratios []float64) string {
	return fmt.Sprintf("%.2f (rounds %.2f to %.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
}

func verdict(reached bool) string {
	if reached {
		return "**reached**"
	}
	return "**not reached**"
}

func (c *cell) perSecond(i, round int) float64 { return c.Samples[i][round].PerSecond() }
func (c *cell) p50(i, round int) float64       { return float64(c.Samples[i][round].P50) }
func (c *cell) p99(i, round int) float64       { return float64(c.Samples[i][round].P99) }

// figures returns one figure of the i-th contender, by round.
func (c *cell) figures(i int, figure func(i, round int) float64) (list []float64) {
	for round := range c.Samples[i] {
		list = append(list, figure(i, round))
	}
	return list
}

// ratios returns the i-th contender's throughput divided by the first one's, by round.
func (c *cell) ratios(i int) []float64 {
	return c.figures(i, func(i, round int) float64 { return c.perSecond(i, round) / c.perSecond(0, round) })
}

// countingRatio is the median ratio for the time of the counting alone.
func (c *cell) countingRatio(i int) float64 {
	return median(c.figures(i, func(i, round int) float64 {
		return float64(c.Counting[i][round]) / float64(c.Counting[0][round])
	}))
}

// median returns the median; of an even number the upper of the two in the middle.
func median[T float64 | time.Duration](list []T) T {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
