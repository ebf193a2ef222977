package main

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

func newReset(a *app) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Forget a key: what it has used, and its block",
		Long: `Forget KEY: what it has used, and its block. If the key has no row, the answer
says so and the exit code is 1.

` + rowHelp,
		Example: `  pglimit reset alice
  pglimit reset --name login --algorithm gcra alice`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.order(cmd, &flags, order{Verb: "reset", Key: args[0]},
				func(p limiter.Policy, before row) (string, bool) {
					if !before.there {
						return "nothing to reset: " + noRow(args[0], p), false
					}
					return done("reset "+args[0], p), true
				},
				func(l *limiter.Limiter, p limiter.Policy) error { return l.Reset(cmd.Context(), p, args[0]) })
		},
	}
	flags.RegisterRow(cmd)
	return cmd
}
