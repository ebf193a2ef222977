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
		Short: "Record what was spent anyway",
		Long: `Record --cost units that KEY has spent whatever the limit says, such as a bill
that came in later. The key is charged up to the burst at most; granted is
what was charged. It is never denied.`,
		Example: `  pglimit charge --limit 1000 --period 24h --cost 250 alice`,

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
		Long: `Give --cost units back to KEY, such as for work that failed. No more goes back
than is there; granted is how much. A leaky_bucket_queue has no refund: a place
in it goes back when its wait is interrupted.`,
		Example: `  pglimit refund --limit 10 --period 1m --cost 3 alice`,

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

// moved returns what Charge or Refund did as a sentence.
func moved(what string, r limiter.Result) string {
	text := fmt.Sprintf("%s %s: %s of %s remaining, reset after %v", what, human.Units(r.Granted), human.Units(r.Remaining), human.Units(r.Burst), r.ResetAfter)
	if r.Full {
		text += ", full"
	}
	return text
}
