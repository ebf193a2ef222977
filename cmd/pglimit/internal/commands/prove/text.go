package prove

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/internal/prove"
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
		through = ", through a pooler"
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

// parts returns the lines about keys with two limits, keys with locked rows, and
// the keys and algorithms that failed.
func parts(r prove.Report) string {
	var text strings.Builder
	var plans prove.Part
	var held prove.Held
	for _, a := range r.Algorithms {
		plans.Keys, plans.Admitted, plans.Allowed = plans.Keys+a.Plans.Keys, plans.Admitted+a.Plans.Admitted, plans.Allowed+a.Plans.Allowed
		held.Keys, held.Admitted, held.Allowed = held.Keys+a.Held.Keys, held.Admitted+a.Held.Admitted, held.Allowed+a.Held.Allowed
		held.Rows, held.Meanwhile = held.Rows+a.Held.Rows, held.Meanwhile+a.Held.Meanwhile
	}
	fmt.Fprintf(&text, "two limits in turn: %d %s, admitted %d of %.0f\n", plans.Keys, human.Plural(plans.Keys, "key"), plans.Admitted, plans.Allowed)
	fmt.Fprintf(&text, "rows locked: %d times on %d %s, admitted %d of %.0f; %d requests for other keys answered meanwhile\n",
		held.Rows, held.Keys, human.Plural(held.Keys, "key"), held.Admitted, held.Allowed, held.Meanwhile)
	for _, a := range r.Algorithms {
		for _, e := range a.Exceeded {
			fmt.Fprintf(&text, "EXCEEDED: %s, key %s: admitted %d of %.0f (limit %s per %v)\n",
				a.Algorithm, e.Key, e.Admitted, e.Allowed, human.Units(e.Policy.Limit), e.Policy.Period)
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
