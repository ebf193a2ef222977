package main

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

func newRefund(a *app) *cobra.Command {
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
			return a.decide(cmd, &flags, args[0], (*limiter.Limiter).Refund, func(r limiter.Result) string {
				return moved("gave back", r)
			})
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}
