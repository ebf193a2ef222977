package decide

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// NewUsage returns the command usage.
func NewUsage(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "usage KEY",
		Short: "Show what a key has spent, reserved and left",
		Long: `Show what KEY has spent in the current period, what open reservations have set
aside, and what remains. It counts nothing. For a bucket, spent is what has not
leaked yet.`,
		Example: `  pglimit usage --limit 100000 --calendar month --time-zone Europe/Vienna alice
  pglimit usage --limit 100000 --calendar month alice --json | jq .remaining`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
				s, err := d.Limiter.Usage(cmd.Context(), d.Policy, args[0])
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Print(cmd, s, usageText(s))
			})
		},
	}
	flags.RegisterPolicy(cmd)
	return cmd
}

func usageText(s limiter.Usage) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "spent\t%s\n", human.Units(s.Spent))
	fmt.Fprintf(table, "reserved\t%s in %d open %s\n", human.Units(s.Reserved), s.Reservations, human.Plural(s.Reservations, "reservation"))
	fmt.Fprintf(table, "remaining\t%s of %s\n", human.Units(s.Remaining), human.Units(s.Result.Burst))
	if !s.WindowEnds.IsZero() {
		fmt.Fprintf(table, "until\t%s\n", s.WindowEnds.Format(time.RFC3339))
	}
	_ = table.Flush() // to a Builder
	return text.String()
}
