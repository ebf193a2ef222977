package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"
)

// report is all measurements.
type report struct {
	plan                 plan
	When                 time.Time
	PostgreSQL, Settings string
	Cells                []cell
}

// bound limits the other keys' p99 while a row is locked.
const bound = 25 * time.Millisecond

// markdown returns the report as Markdown.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## A held row\n\n")
	if r.plan.Quick {
		fmt.Fprintf(&b, "**A quick run: it shows that the measurement works, and settles nothing.**\n\n")
	}
	fmt.Fprintf(&b, "Measured on %s by `make bench-held`: PostgreSQL %s, %s, %s/%s with %d CPUs for server and callers; the server's\nsettings: %s.\n\n",
		r.When.Format(time.DateOnly), r.PostgreSQL, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), r.Settings)
	fmt.Fprintf(&b, "%d callers request %d keys evenly, `token_bucket`, Relaxed, one unit, with batching as it is by default and no deny\ncache, each again as soon as it has its answer, for %v after %v of warming up. One more key is requested as often as\neach of these, on separate goroutines; where a row is locked it is that key's, by a transaction, %v of every %v.\nThe figures are of the other keys, except the last: the requests for that one, warming up included.\n\n",
		callers, keys-1, r.plan.Length, r.plan.Warmup, holdFor, holdEvery)
	fmt.Fprintf(&b, "| connections | locked | p50 ms | p99 ms | p99.9 ms | decisions/s | requests for that key |\n|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, c := range r.Cells {
		held := "no"
		if c.Held {
			held = fmt.Sprintf("%d times", c.Holds)
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %.0f | %d |\n", c.Connections, held,
			milliseconds(c.Others.P50), milliseconds(c.Others.P99), milliseconds(c.Others.P999), c.Others.PerSecond(), c.Answered)
	}
	fmt.Fprintf(&b, "\nReach: other keys' p99 at most %d ms while the row is held:\n\n", bound.Milliseconds())
	for _, c := range r.Cells {
		if c.Held {
			word := "reached"
			if c.Others.P99 > bound {
				word = "not reached"
			}
			fmt.Fprintf(&b, "- %d connections: %s ms: **%s**\n", c.Connections, milliseconds(c.Others.P99), word)
		}
	}
	return b.String()
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
