package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

func newFill(a *app) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "fill KEY",
		Short: "Record what was spent anyway",
		Long: `Record --cost units that KEY has spent whatever the limit says, such as a bill
that came in later. The key is filled up to the burst at most; granted is what
went in. It is never denied.`,
		Example: `  pglimit fill --limit 1000 --period 24h --cost 250 alice`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd, &flags, args[0], (*limiter.Limiter).Fill, func(r limiter.Result) string {
				return moved("filled in", r)
			})
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}

// moved tells a person what Fill or Refund did.
func moved(what string, r limiter.Result) string {
	text := fmt.Sprintf("%s %s: %s of %s remaining, reset after %v", what, human.Units(r.Granted), human.Units(r.Remaining), human.Units(r.Burst), r.ResetAfter)
	if r.Full {
		text += ", full"
	}
	return text
}
