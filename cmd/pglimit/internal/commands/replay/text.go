package replay

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/guptarohit/asciigraph"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

const graphLines = 8

// reportText returns the report as text.
func reportText(r *replay.Report) string {
	var w strings.Builder
	span := r.First.Format(time.DateTime) + " to " + r.Last.Format(time.DateTime)
	several := len(r.Candidates) > 1
	if several {
		for i, c := range r.Candidates {
			fmt.Fprintf(&w, "%s: %s\n", replay.Letter(i), candidateText(c))
		}
		fmt.Fprintf(&w, "%s\n\n", span)
	} else {
		fmt.Fprintf(&w, "%s: %s\n\n", candidateText(r.Candidates[0]), span)
	}
	writeTotals(&w, r)
	for i, c := range r.Candidates {
		if c.Denied == 0 {
			continue
		}
		of := ""
		if several {
			of = replay.Letter(i) + ": "
		}
		fmt.Fprintf(&w, "\n%sdenied most:\n\n", of)
		table := newTable(&w)
		for _, k := range c.TopDenied {
			fmt.Fprintf(table, "  %s\t%d\n", replay.Shown(k.Key), k.Denied)
		}
		_ = table.Flush()
		if len(c.DeniedOverTime) > 1 {
			counts := make([]float64, len(c.DeniedOverTime))
			for i, n := range c.DeniedOverTime {
				counts[i] = float64(n)
			}
			fmt.Fprintf(&w, "\n%s\n", asciigraph.Plot(counts, asciigraph.Height(graphLines), asciigraph.LowerBound(0), asciigraph.Precision(0),
				asciigraph.Caption(fmt.Sprintf("%sdenied in each %v", of, time.Duration(r.PartSeconds*float64(time.Second))))))
		}
	}
	return w.String()
}

// writeTotals writes the table of totals, with a column for each candidate.
func writeTotals(w *strings.Builder, r *replay.Report) {
	table := newTable(w)
	row := func(name string, of int, n func(replay.CandidateReport) int) {
		fmt.Fprint(table, name)
		for _, c := range r.Candidates {
			fmt.Fprintf(table, "\t%d\t%.1f %%", n(c), 100*float64(n(c))/float64(of))
		}
		fmt.Fprintln(table)
	}
	outcomes := func() {
		row("allowed", r.Requests, func(c replay.CandidateReport) int { return c.Allowed })
		if slices.ContainsFunc(r.Candidates, func(c replay.CandidateReport) bool { return c.Policy.Algorithm == limiter.LeakyBucketQueue }) {
			row("delayed", r.Requests, func(c replay.CandidateReport) int { return c.Delayed })
		}
		row("denied", r.Requests, func(c replay.CandidateReport) int { return c.Denied })
	}
	keysDenied := func() { row("keys denied", r.Keys, func(c replay.CandidateReport) int { return c.KeysDenied }) }
	badLines := func() {
		if r.BadLines > 0 {
			fmt.Fprintf(table, "bad lines\t%d\n", r.BadLines)
		}
	}
	fmt.Fprintf(table, "requests\t%d\n", r.Requests)
	if len(r.Candidates) == 1 {
		outcomes()
		fmt.Fprintf(table, "keys\t%d\n", r.Keys)
		keysDenied()
		badLines()
	} else {
		fmt.Fprintf(table, "keys\t%d\n", r.Keys)
		badLines()
		fmt.Fprintln(table)
		letters := ""
		for i := range r.Candidates {
			letters += "\t" + replay.Letter(i) + "\t"
		}
		fmt.Fprintln(table, strings.TrimSuffix(letters, "\t"))
		outcomes()
		keysDenied()
	}
	_ = table.Flush()
}

func newTable(w *strings.Builder) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// candidateText returns a candidate's policy in one line.
func candidateText(c replay.CandidateReport) string {
	p := c.Policy
	text := fmt.Sprintf("%s, %s per %s", p.Algorithm, human.Units(p.Limit), per(p))
	add := func(is bool, format string, values ...any) {
		if is {
			text += ", " + fmt.Sprintf(format, values...)
		}
	}
	add(p.Burst != 0, "burst %s", human.Units(p.Burst))
	add(p.Tick != 0, "tick %v", p.Tick)
	add(p.Aligned, "aligned")
	add(p.BlockFor != 0, "block for %v", p.BlockFor)
	add(c.Cost != 1, "cost %s", human.Units(c.Cost))
	return text
}

// per returns the period of a policy's limit.
func per(p limiter.Policy) string {
	switch {
	case p.Calendar == "":
		return p.Period.String()
	case p.TimeZone == "":
		return string(p.Calendar) + " (UTC)"
	}
	return fmt.Sprintf("%s (%s)", p.Calendar, p.TimeZone)
}
