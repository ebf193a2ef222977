package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// report is all measurements.
type report struct {
	plan                 plan
	When                 time.Time
	PostgreSQL, Settings string
	SyncTime             time.Duration
	Steady               []*steady
	Surge                *surge
}

// The project's goals.
const (
	mostP99   = 10 * time.Millisecond // of a key with a steady rate
	mostOther = 1.2                   // times the other keys' p99 before the surge
)

// markdown returns the report as Markdown.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## Requests by a clock\n\n")
	if r.plan.Quick {
		fmt.Fprintf(&b, "**A quick run: it shows that the measurement works, and settles nothing.**\n\n")
	}
	r.goals(&b)
	r.steady(&b)
	r.surge(&b)
	r.settings(&b)
	return b.String()
}

// goals writes the goals and whether they were reached.
func (r *report) goals(b *strings.Builder) {
	fmt.Fprintf(b, "| Goal | Contender | At most | Median | Least to most | |\n|---|---|--:|--:|--:|---|\n")
	for _, c := range r.Steady {
		for i, contender := range c.contenders {
			if contender.ID == naive.ID {
				continue // it is what to compare with
			}
			fmt.Fprintf(b, "| one key, %d requests a second, %d callers: p99 | %s | %s ms | %s |\n", rate, c.Callers, contender.ID,
				milliseconds(float64(mostP99)), judged(figures(c.Samples[i], p99), float64(mostP99), milliseconds, " ms"))
		}
	}
	for i, contender := range r.Surge.contenders {
		fmt.Fprintf(b, "| %d times as many for one key: other keys' p99 against before | %s | %v times | %s |\n", surgeTimes, contender.ID,
			mostOther, judged(figures(r.Surge.Samples[i], othersRatio), mostOther, times, ""))
	}
	b.WriteString("\n")
}

// judged returns the median, the least and the most, and whether the median is at most that.
func judged(sorted []float64, atMost float64, format func(float64) string, unit string) string {
	m := median(sorted)
	verdict := "**not reached**"
	if m <= atMost {
		verdict = "reached"
	}
	return fmt.Sprintf("%s%s | %s to %s%s | %s", format(m), unit, format(sorted[0]), format(sorted[len(sorted)-1]), unit, verdict)
}

// steady writes the figures of one key with a steady rate.
func (r *report) steady(b *strings.Builder) {
	fmt.Fprintf(b, "### One key, %d requests a second\n\n", rate)
	fmt.Fprintf(b, "To compare: a published report (TensorZero) has p99 120 ms with 20 callers and 500 ms with 50 callers for a naive\nlimiter on PostgreSQL, on other machines. The bare upsert is one on this machine.\n\n")
	fmt.Fprintf(b, "| callers | contender | p50 ms | p99 ms | p99 least to most | p99.9 ms | of it the clock, p99 ms |\n|--:|---|--:|--:|--:|--:|--:|\n")
	for _, c := range r.Steady {
		for i, contender := range c.contenders {
			s := c.Samples[i]
			all := figures(s, p99)
			fmt.Fprintf(b, "| %d | %s | %s | %s | %s to %s | %s | %s |\n", c.Callers, contender.ID,
				milliseconds(median(figures(s, p50))), milliseconds(median(all)), milliseconds(all[0]), milliseconds(all[len(all)-1]),
				milliseconds(median(figures(s, p999))), milliseconds(median(figures(s, late))))
		}
	}
	b.WriteString("\n")
}

// surge writes the figures of the surge.
func (r *report) surge(b *strings.Builder) {
	fmt.Fprintf(b, "### A surge on one key\n\n%d other keys are used evenly, %d requests a second in all, throughout. One key gets %d requests a second for %v, and\nthen %d for as long.\n\n",
		otherKeys, otherRate, rate, r.plan.Length, surgeTimes*rate)
	fmt.Fprintf(b, "| contender | keys | when | p50 ms | p99 ms | p99 least to most | p99.9 ms | of it the clock, p99 ms |\n|---|---|---|--:|--:|--:|--:|--:|\n")
	for i, contender := range r.Surge.contenders {
		for _, row := range []struct {
			keys, when string
			of         func(surgeSample) measure.OpenSample
		}{
			{"others", "before", func(s surgeSample) measure.OpenSample { return s.OthersBefore }},
			{"others", "surge", func(s surgeSample) measure.OpenSample { return s.Others }},
			{"the one", "before", func(s surgeSample) measure.OpenSample { return s.HotBefore }},
			{"the one", "surge", func(s surgeSample) measure.OpenSample { return s.Hot }},
		} {
			each := func(figure func(measure.OpenSample) float64) []float64 {
				return figures(r.Surge.Samples[i], func(s surgeSample) float64 { return figure(row.of(s)) })
			}
			all := each(p99)
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s to %s | %s | %s |\n", contender.ID, row.keys, row.when,
				milliseconds(median(each(p50))), milliseconds(median(all)), milliseconds(all[0]), milliseconds(all[len(all)-1]),
				milliseconds(median(each(p999))), milliseconds(median(each(late))))
		}
	}
	b.WriteString("\n")
}

// settings writes how was measured.
func (r *report) settings(b *strings.Builder) {
	fmt.Fprintf(b, "### Settings\n\nMeasured on %s by `make bench-load`:\n\n", r.When.Format(time.DateOnly))
	fmt.Fprintf(b, "- PostgreSQL %s: %s, else its defaults; a written page takes %s ms to reach the disk\n", r.PostgreSQL, r.Settings, milliseconds(float64(r.SyncTime)))
	fmt.Fprintf(b, "- %s, %s/%s, %d CPUs for server and callers, by TCP; one pool of 16 connections\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	for _, c := range []contender{naive, durable, relaxed} {
		fmt.Fprintf(b, "- %s: %s\n", c.ID, c.What)
	}
	fmt.Fprintf(b, "- Requests are due at equal distances, whether or not earlier ones have been answered. A time counts from the\n  moment at which the request was due to its answer, and so includes how late the clock was and the wait for a\n  free caller.\n")
	fmt.Fprintf(b, "- %d callers for the other keys, %d for the key that surges\n", otherCallers, surgeCallers)
	fmt.Fprintf(b, "- Contenders take turns in %d rounds, %v each after %v of warming up. Values are medians of the rounds.\n", r.plan.Rounds, r.plan.Length, r.plan.Warmup)
	fmt.Fprintf(b, "- Limits are so high that every request is allowed. After each measurement all were counted.\n")
}

// The figures of a sample.
func p50(s measure.OpenSample) float64  { return float64(s.P50) }
func p99(s measure.OpenSample) float64  { return float64(s.P99) }
func p999(s measure.OpenSample) float64 { return float64(s.P999) }
func late(s measure.OpenSample) float64 { return float64(s.Late) }

func othersRatio(s surgeSample) float64 { return p99(s.Others) / p99(s.OthersBefore) }

// median returns the middle value of a sorted list, or the mean of the two in the middle.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func milliseconds(ns float64) string { return fmt.Sprintf("%.2f", ns/float64(time.Millisecond)) }

func times(ratio float64) string { return fmt.Sprintf("%.2f", ratio) }
