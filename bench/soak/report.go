package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// markdown returns the report as Markdown.
func (o *outcome) markdown() string {
	var b strings.Builder
	p := o.plan
	fmt.Fprintf(&b, "## Soak\n\n")
	if p.Quick {
		fmt.Fprintf(&b, "**A quick run: it shows that the soak works, and settles nothing.**\n\n")
	}
	fmt.Fprintf(&b, "Measured on %s by `make soak`: PostgreSQL %s, %s, %d CPUs for callers and server. %d callers try to send %s\nrequests/s for %v after a warm-up of %v; %s keys arrive meanwhile. The limiter's and the janitor's clock is %d\ntimes as fast as the real one, so %v pass for them, and an hour takes %v. The janitor sweeps every %v of\nreal time.\n\n",
		o.When.Format(time.DateOnly), o.PostgreSQL, o.Go, o.CPUs, callers, grouped(int64(p.Rate)), p.Length, p.Warm, grouped(int64(p.Keys)), p.Speed,
		(p.Length * time.Duration(p.Speed)).Round(time.Minute), time.Hour/time.Duration(p.Speed), p.Sweep)

	line(&b, "", "first "+p.Part.String(), "last "+p.Part.String(), "bound", "")
	b.WriteString("|---|--:|--:|---|---|\n")
	for _, v := range o.Verdicts {
		word := "ok"
		if !v.Passed {
			word = "**failed**"
		}
		line(&b, v.Name, v.First, v.Last, v.Bound, word)
	}

	fmt.Fprintf(&b, "\n%s requests were answered from memory, and are not in p50 and p99. Goroutines are the\nleast since the line before. Rows, bytes and dead rows are sums of all tables. HOT %% is\nsince the warm-up's end.\n\n", grouped(o.Cached))
	line(&b, "at", "requests/s", "p50 µs", "p99 µs", "heap", "resident", "server", "its own", "goroutines", "rows", "dead", "MB", "HOT %", "deleted")
	b.WriteString("|" + strings.Repeat("--:|", 14) + "\n")
	before, start := o.Readings[0], o.Readings[0]
	for _, r := range o.Readings[1:] {
		line(&b, r.At.String(), grouped(int64(r.PerSecond)), grouped(r.P50.Microseconds()), grouped(r.P99.Microseconds()), megabytes(r.Memory.Heap),
			megabytes(r.Memory.Resident), megabytes(r.Memory.Server), megabytes(r.Memory.ServerOwn), strconv.Itoa(r.Goroutines), grouped(r.rows()),
			grouped(r.dead()), megabytes(r.bytes()), percent(r.hotSince(start)), grouped(r.Removed-before.Removed))
		before = r
	}

	b.WriteString("\nAt the end:\n\n")
	line(&b, "table", "rows", "dead", "table MB", "indexes MB", "HOT %", "autovacuum runs")
	b.WriteString("|---|" + strings.Repeat("--:|", 6) + "\n")
	for _, t := range o.Readings[len(o.Readings)-1].Tables {
		share := -1.0
		if t.Updates > 0 {
			share = float64(t.HOT) / float64(t.Updates)
		}
		line(&b, t.Name, grouped(t.Rows), grouped(t.Dead), megabytes(t.Bytes), megabytes(t.Indexes), percent(share), grouped(t.Vacuums))
	}
	return b.String()
}

func line(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// megabytes formats bytes in units of 2^20; a negative number is unknown.
func megabytes(bytes int64) string {
	if bytes < 0 {
		return "n/a"
	}
	return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64)
}

// percent formats a share in hundredths; a negative number is unknown.
func percent(share float64) string {
	if share < 0 {
		return "n/a"
	}
	return strconv.FormatFloat(100*share, 'f', 2, 64)
}
