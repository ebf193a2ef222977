package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/prove"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

const proveHelp = `Test the limits of your database under contention, and compare what was admitted
with what each algorithm allows. --workers send requests of 1 to 3 units for a
few keys of each algorithm, over several connection pools, for --for in total.
  - Some requests are in transactions; half of those are rolled back.
  - Some clients close their connection before the answer.
  - The server ends some of the test's connections.
  - Some keys have several plans in turn: other limits, bursts and periods. The
    most generous of each bound them together.
  - Some keys leak in whole ticks, some have aligned windows, and some those of
    a calendar. No window may be admitted more than its limit, and answers must
    name its end.
  - Some keys are requested together, by AllowAll. What is counted of them must
    agree.

The columns count units, except PER SECOND, which counts requests:
  ASKED     requested
  ADMITTED  allowed to a client and, in a transaction, committed
  ALLOWED   the most that the policies admit to these keys in that time
  UNKNOWN   requested without an answer: maybe counted, but not admitted

The server's log shows the ended connections; --kill=false ends none. Behind a
pooler such as PgBouncer none are ended, because other clients may share them;
its name, version and mode are shown, as far as it tells them. In transaction mode
the database's URL may need ?default_query_exec_mode=exec (or cache_describe).

The keys belong to separate policies and are deleted at the end, also after
Ctrl-C. The test uses two connections more than workers.

Exit code 0: no key was admitted more than is allowed or counted wrongly; 1: one
was; 3: the database failed.`

func newProve(db *connect.Database, out *cli.Output) *cobra.Command {
	config := prove.Config{}
	cmd := &cobra.Command{
		Use:   "prove",
		Short: "Test your database's limits under contention",
		Long:  proveHelp,
		Example: `  pglimit prove
  pglimit prove --for 5s
  pglimit prove --for 5m --workers 100 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Validate(); err != nil {
				return err
			}
			pool, err := db.Open(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			bar := progressBar(cmd, int64(len(limiter.Algorithms())), "")
			config.Progress = func(a limiter.Algorithm) {
				bar.Describe(string(a))
				_ = bar.Add(1) // failing to draw the bar is not an error
			}
			config.Through = func(description string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "through a pooler: %s; no connections are ended\n", description)
			}
			report, err := prove.Run(cmd.Context(), pool, config)
			_ = bar.Close()
			if err != nil {
				return explainProof(cmd.Context(), err)
			}
			return out.Answer(cmd, report.Holds, report, proofText(report))
		},
	}
	flags := cmd.Flags()
	cli.DurationVar(flags, &config.For, "for", 30*time.Second, "`duration` of the test, shared by the algorithms")
	flags.IntVar(&config.Workers, "workers", 32, "`number` of concurrent clients, 1 to 1000")
	flags.BoolVar(&config.Kill, "kill", true, "end some of the test's connections")
	return cmd
}

// explain marks an error of prove.Run for its exit code.
func explainProof(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted before there was a result: %w", err)
	}
	switch {
	case errors.Is(err, prove.ErrConfig):
		return err
	case errors.Is(err, pooler.ErrStatements):
		return cli.DatabaseError(err) // also if the lost statement caused another error
	}
	return cli.LimiterError(err)
}

// Text returns a report as text.
func proofText(r prove.Report) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "ALGORITHM\tKEYS\tASKED\tADMITTED\tALLOWED\tROLLED BACK\tUNKNOWN\tPER SECOND\tP99\t")
	for _, a := range r.Algorithms {
		fmt.Fprintf(table, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1fms\t\n", a.Algorithm, a.Keys,
			a.Asked, a.Admitted, a.Allowed, a.RolledBack, a.Unknown, a.PerSecond, 1000*a.P99)
	}
	_ = table.Flush() // to a Builder
	through := ""
	if r.Pooler {
		through = ", through a pooler: " + r.Through
	}
	fmt.Fprintf(&text, "\n%s on %s for %.1f s%s; %s ended by the server\n",
		printable.Count(r.Workers, "worker"), printable.Count(r.Pools, "pool"), r.Took, through, printable.Count(r.Killed, "connection"))
	text.WriteString(partsText(r))
	if r.Holds {
		text.WriteString("It holds: no key was admitted more than its policy allows.\n")
	} else {
		text.WriteString("It does not hold. Please report this with the server's version and settings.\n")
	}
	return text.String()
}

// kindTexts are the kinds of keys that have a separate line.
var kindTexts = []struct {
	kind prove.Kind
	text string
}{{prove.Plans, "plans in turn"}, {prove.Ticks, "whole ticks"}, {prove.Aligned, "aligned windows"}, {prove.Calendars, "calendars"}, {prove.Sets, "AllowAll"}}

// partsText returns the lines about the kinds of keys, and about the keys that failed.
func partsText(r prove.Report) string {
	var text strings.Builder
	for _, k := range kindTexts {
		var sum prove.Part
		for _, a := range r.Algorithms {
			for i := range a.Kinds {
				if a.Kinds[i].Kind == k.kind {
					sum.Add(&a.Kinds[i])
				}
			}
		}
		fmt.Fprintf(&text, "%s: %s, admitted %.0f of %.0f\n", k.text, printable.Count(sum.Keys, "key"), sum.Admitted, sum.Allowed)
	}
	for _, a := range r.Algorithms {
		for _, e := range a.Exceeded {
			fmt.Fprintf(&text, "EXCEEDED: %s, key %s: admitted %.0f of %.0f (limit %s per %s)\n",
				a.Algorithm, e.Key, e.Admitted, e.Allowed, cli.Units(e.Policy.Limit), perText(e.Policy))
		}
		for _, f := range a.Faults {
			fmt.Fprintf(&text, "WRONG: %s, key %s (limit %s per %s): %s\n", a.Algorithm, f.Key, cli.Units(f.Policy.Limit), perText(f.Policy), f.Fault)
		}
	}
	return text.String()
}
