package prove

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/internal/prove"
	"github.com/pglimit/pglimit/limiter"
)

// Text returns a report as text.
func Text(r prove.Report) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "ALGORITHM\tKEYS\tASKED\tADMITTED\tALLOWED\tROLLED BACK\tUNKNOWN\tPER SECOND\tP99\t")
	for _, a := range r.Algorithms {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%.0f\t%d\t%d\t%.0f\t%.1fms\t\n", a.Algorithm, a.Keys,
			a.Asked, a.Admitted, a.Allowed, a.RolledBack, a.Unknown, a.PerSecond, 1000*a.P99)
	}
	_ = table.Flush() // to a Builder
	through := ""
	if r.Pooler {
		through = ", through a pooler: " + r.Through
	}
	fmt.Fprintf(&text, "\n%d workers on %d pools for %.1f s%s; %d connections ended by the server\n",
		r.Workers, r.Pools, r.Took, through, r.Killed)
	text.WriteString(parts(r))
	if r.Holds {
		text.WriteString("It holds: no key was admitted more than its policy allows.\n")
	} else {
		text.WriteString("It does not hold. Please report this with the server's version and settings.\n")
	}
	return text.String()
}

// parts returns the lines about the kinds of keys, and about the keys and algorithms that
// failed.
func parts(r prove.Report) string {
	var text strings.Builder
	sum := summed(r)
	line := func(what string, p prove.Part, more string, args ...any) {
		fmt.Fprintf(&text, "%s: %d %s, admitted %d of %.0f", what, p.Keys, human.Plural(p.Keys, "key"), p.Admitted, p.Allowed)
		fmt.Fprintf(&text, more+"\n", args...)
	}
	line("plans in turn", sum.Plans, "")
	line("rows locked", sum.Held.Part, "; %d times, and %d requests for other keys answered meanwhile", sum.Held.Rows, sum.Held.Meanwhile)
	line("whole ticks", *sum.Ticks, "")
	line("aligned windows", *sum.Aligned, "")
	line("calendars", *sum.Calendars, "")
	line("AllowAll", sum.Sets, "")
	line("reservations", sum.Reserved.Part, " at one time; %d made, %d settled, %d cancelled, %d left open, %d settled late",
		sum.Reserved.Made, sum.Reserved.Settled, sum.Reserved.Cancelled, sum.Reserved.LeftOpen, sum.Reserved.Late)
	for _, a := range r.Algorithms {
		for _, e := range a.Exceeded {
			fmt.Fprintf(&text, "EXCEEDED: %s, key %s: admitted %d of %.0f (limit %s per %s)\n",
				a.Algorithm, e.Key, e.Admitted, e.Allowed, human.Units(e.Policy.Limit), period(e.Policy))
		}
		for _, f := range a.Faults {
			fmt.Fprintf(&text, "WRONG: %s, key %s (limit %s per %s): %s\n", a.Algorithm, f.Key, human.Units(f.Policy.Limit), period(f.Policy), f.Fault)
		}
		if a.Held.Stalls > 0 {
			fmt.Fprintf(&text, "STALLED: %s: no other key was answered while a row was locked, %d times", a.Algorithm, a.Held.Stalls)
			if r.Pooler {
				text.WriteString("; give the pooler more connections")
			}
			text.WriteString("\n")
		}
	}
	return text.String()
}

func period(p limiter.Policy) string {
	if p.Calendar != "" {
		return string(p.Calendar) + " in " + p.TimeZone
	}
	return p.Period.String()
}

// summed returns the kinds of keys of all algorithms.
func summed(r prove.Report) (sum prove.Algorithm) {
	sum.Ticks, sum.Aligned, sum.Calendars, sum.Reserved = &prove.Part{}, &prove.Part{}, &prove.Part{}, &prove.Reserved{}
	for _, a := range r.Algorithms {
		sum.Plans.Add(a.Plans)
		sum.Held.Add(a.Held.Part)
		sum.Held.Rows += a.Held.Rows
		sum.Held.Meanwhile += a.Held.Meanwhile
		sum.Sets.Add(a.Sets)
		if a.Ticks != nil {
			sum.Ticks.Add(*a.Ticks)
		}
		if a.Aligned != nil {
			sum.Aligned.Add(*a.Aligned)
			sum.Calendars.Add(*a.Calendars)
		}
		if v := a.Reserved; v != nil {
			sum.Reserved.Add(v.Part)
			sum.Reserved.Made += v.Made
			sum.Reserved.Settled += v.Settled
			sum.Reserved.Cancelled += v.Cancelled
			sum.Reserved.LeftOpen += v.LeftOpen
			sum.Reserved.Late += v.Late
		}
	}
	return sum
}
