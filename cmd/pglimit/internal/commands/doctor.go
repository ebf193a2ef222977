package commands

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
)

func newDoctor(db *connect.Database, out *cli.Output) *cobra.Command {
	var config doctor.Config
	var strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the database for what refuses, slows down or loses decisions",
		Long: `Check the database for what refuses, slows down or loses decisions: rights,
migrations, poolers, settings, clocks, the janitor, dead rows and what keeps them,
replicas and stored policies. Each line is ok, warn or fail; a fix follows where
there is one.

doctor only reads. It takes no lock that a decision could wait for. What the role
may not see is said. Run it as the role of the application to check its rights,
and as a member of pg_monitor to see all sessions.

Exit codes: 0 if no check fails, 1 if one does, 2 for wrong usage, 3 if the
database cannot be reached. With --strict, a warning counts as a failure.

The checks are:
` + wrap(doctor.Names(), 78, "  "),
		Example: `  pglimit doctor
  pglimit doctor --only janitor,due,snapshots
  pglimit doctor --skip pooler,replicas --strict
  pglimit doctor --json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Validate(); err != nil {
				return err
			}
			pool, err := db.OpenUnmigrated(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			report, err := doctor.Run(cmd.Context(), pool, &config)
			if err != nil {
				return cli.DatabaseError(err)
			}
			worst := report.Verdict()
			color := cli.OnTerminal(cmd.OutOrStdout()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
			return out.Answer(cmd, worst == doctor.OK || worst == doctor.Warn && !strict, struct {
				Verdict doctor.Verdict `json:"verdict"`
				doctor.Report
			}{worst, report}, doctorText(report, color))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&config.Only, "only", nil, "`checks` to make, by their names; default: all")
	flags.StringSliceVar(&config.Skip, "skip", nil, "`checks` to leave out")
	flags.BoolVar(&strict, "strict", false, "end with exit code 1 for a warning too")
	cli.DurationVar(flags, &config.Timeout, "timeout", 0, "`time` for each check, 10ms to 10m; default: 5s")
	cli.DurationVar(flags, &config.JanitorInterval, "janitor-interval", 0, "`interval` of your janitors; default: 1m")
	cli.DurationVar(flags, &config.OldTransaction, "old-transaction", 0, "`age` from which a transaction is reported; default: 1m")
	for _, name := range []string{"only", "skip"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(doctor.Names(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	return cmd
}

// The colours of a terminal.
var colors = map[doctor.Verdict]string{doctor.OK: "\x1b[32m", doctor.Warn: "\x1b[33m", doctor.Fail: "\x1b[1;31m"}

const plain = "\x1b[0m"

// render writes a line for each check, with its fix and details below unless it is ok.
func doctorText(report doctor.Report, color bool) string {
	width := 0
	for _, c := range report.Checks {
		width = max(width, len(c.Name))
	}
	indent := strings.Repeat(" ", 6+width+2)
	var text strings.Builder
	counts := map[doctor.Verdict]int{}
	for _, c := range report.Checks {
		counts[c.Verdict]++
		verdict := fmt.Sprintf("%-4s", c.Verdict)
		if color {
			verdict = colors[c.Verdict] + verdict + plain
		}
		fmt.Fprintf(&text, "%s  %-*s  %s\n", verdict, width, c.Name, escaped(c.Message))
		if c.Verdict == doctor.OK {
			continue
		}
		for _, d := range c.Details {
			if !strings.Contains(c.Message, d) && !strings.Contains(c.Fix, d) {
				fmt.Fprintf(&text, "%s%s\n", indent, escaped(d))
			}
		}
		fmt.Fprintf(&text, "%sfix: %s\n", indent, escaped(c.Fix))
	}
	fmt.Fprintf(&text, "%d ok, %d to improve, %d failed, in %s\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail], duration.Format(report.Took.Round(time.Millisecond)))
	return text.String()
}

// oneLine returns a text, which may have names of the database, without line feeds and
// without characters that a terminal obeys.
func escaped(s string) string {
	return printable.Escape(strings.ReplaceAll(s, "\n", " "))
}

// wrap joins words with commas in lines of at most width bytes.
func wrap(words []string, width int, indent string) string {
	var lines []string
	line := indent
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		if len(line)+len(w) > width {
			lines = append(lines, strings.TrimRight(line, " "))
			line = indent
		}
		line += w + " "
	}
	return strings.Join(append(lines, strings.TrimRight(line, " ")), "\n")
}
