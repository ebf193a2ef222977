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
migrations, poolers, settings, clocks, locks, the janitor, dead rows and what keeps
them, replicas, stored policies and the programs that follow them. The worst comes first. Each line is fail, warn,
unchecked or ok. A fix can be pasted into psql or a shell as it is. Checks that
fail for the same cause are one finding: the others are unchecked.

doctor changes nothing, and takes no lock that a decision could wait for. It makes
trial decisions on random keys and rolls them back. Run it as the role of the
application to check its rights. A check is unchecked if that role may not look;
the fix is the grant that lets it. Members of pg_monitor see all sessions.

Exit codes: 0 if no check fails, 1 if one does, 2 for wrong usage, 3 if the
database cannot be reached. With --strict, warn and unchecked count as failures.

The checks are:
` + wrap(doctor.Names(), 78, "  "),
		Example: `  pglimit doctor
  pglimit doctor --only janitor,locks,snapshots
  pglimit doctor --skip pooler,replicas --strict
  pglimit doctor --json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Validate(); err != nil {
				return err
			}
			pool, err := db.OpenAsNamed(cmd)
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
			return out.Answer(cmd, worst == doctor.OK || worst < doctor.Fail && !strict, struct {
				Verdict doctor.Verdict `json:"verdict"`
				doctor.Report
			}{worst, report}, doctorText(report, color))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&config.Only, "only", nil, "`checks` to make, by their names; default: all")
	flags.StringSliceVar(&config.Skip, "skip", nil, "`checks` to leave out")
	flags.BoolVar(&strict, "strict", false, "end with exit code 1 unless all is ok")
	cli.DurationVar(flags, &config.Timeout, "timeout", 0, "`time` for each check, 10ms to 10m; default: 5s")
	cli.DurationVar(flags, &config.JanitorInterval, "janitor-interval", 0, "`interval` of your janitors; default: 1m")
	cli.DurationVar(flags, &config.OldTransaction, "old-transaction", 0, "`age` from which a transaction is reported; default: 1m")
	for _, name := range []string{"only", "skip"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(doctor.Names(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	return cmd
}

// The colours of a terminal.
var colors = map[doctor.Verdict]string{doctor.OK: "\x1b[32m", doctor.Unchecked: "\x1b[36m", doctor.Warn: "\x1b[33m", doctor.Fail: "\x1b[1;31m"}

const plain = "\x1b[0m"

// doctorText writes a line for each check, with its details, fix and next step below unless
// it is ok. Checks that say the same share a line.
func doctorText(report doctor.Report, color bool) string {
	const verdicts = len("unchecked")
	names, width, counts := map[string][]string{}, 0, map[doctor.Verdict]int{}
	same := func(c doctor.Check) string {
		return fmt.Sprintf("%v %q %q %q", c.Verdict, c.Message, c.Fix, c.NextStep)
	}
	for _, c := range report.Checks {
		names[same(c)] = append(names[same(c)], c.Name)
		width = max(width, len(c.Name))
		counts[c.Verdict]++
	}
	var text strings.Builder
	line := func(verdict, name, message string) {
		fmt.Fprintf(&text, "%-*s  %-*s  %s\n", verdicts, verdict, width, name, escaped(message))
	}
	for _, c := range report.Checks {
		all := names[same(c)]
		if all[0] != c.Name {
			continue
		}
		verdict := fmt.Sprintf("%-*s", verdicts, c.Verdict)
		if color {
			verdict = colors[c.Verdict] + verdict + plain
		}
		line(verdict, c.Name, c.Message)
		if c.Verdict == doctor.OK {
			continue
		}
		if len(all) > 1 {
			line("", "", "so are "+strings.Join(all[1:], ", "))
		}
		for _, d := range c.Details {
			if !strings.Contains(c.Message, d) && !strings.Contains(c.Fix, d) {
				line("", "", d)
			}
		}
		if as := "fix"; c.Fix != "" {
			if c.FixAs != "" {
				as += ", as " + c.FixAs
			}
			line("", "", as+": "+c.Fix)
		}
		if c.NextStep != "" {
			line("", "", "next: "+c.NextStep)
		}
	}
	for _, v := range []doctor.Verdict{doctor.Fail, doctor.Warn, doctor.Unchecked, doctor.OK} {
		if counts[v] > 0 {
			fmt.Fprintf(&text, "%d %s, ", counts[v], v)
		}
	}
	fmt.Fprintf(&text, "in %s\n", duration.Format(report.Took.Round(time.Millisecond)))
	return text.String()
}

// escaped returns a text, which may have names of the database, without line feeds and
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
