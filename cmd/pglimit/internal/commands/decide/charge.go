package decide

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// NewCharge returns the command charge.
func NewCharge(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "charge KEY",
		Short: "Record units that were already spent",
		Long: `Record --cost units that KEY has already spent, such as a bill that arrived
later. A charge is never denied, and it counts at most up to the burst. granted
in the JSON is the number of units charged.`,
		Example: `  pglimit charge --limit 1000 --period 24h --cost 250 alice
  pglimit charge --limit 1000 --period 24h --cost 250 alice --json | jq .granted`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd, db, out, &flags, args[0], (*limiter.Limiter).Charge, func(r limiter.Result) string {
				return moved("charged", r)
			})
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}

// NewRefund returns the command refund.
func NewRefund(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "refund KEY",
		Short: "Give units back",
		Long: `Give --cost units back to KEY, such as for work that failed. At most the units
that are used go back. granted in the JSON is the number of units given back.

leaky_bucket_queue has no refund: an interrupted wait gives its place back.`,
		Example: `  pglimit refund --limit 10 --period 1m --cost 3 alice
  pglimit refund --limit 10 --period 1m --cost 3 alice --json | jq .granted`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd, db, out, &flags, args[0], (*limiter.Limiter).Refund, func(r limiter.Result) string {
				return moved("gave back", r)
			})
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}

// moved describes the result of Charge or Refund in one line.
func moved(what string, r limiter.Result) string {
	text := fmt.Sprintf("%s %s: %s of %s remaining, reset after %v", what, human.Units(r.Granted), human.Units(r.Remaining), human.Units(r.Burst), r.ResetAfter)
	if r.Full {
		text += ", full"
	}
	return text
}
