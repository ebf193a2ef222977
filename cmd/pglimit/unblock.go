package main

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

func newUnblock(a *app) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "unblock KEY",
		Short: "Lift a key's block",
		Long: `Lift KEY's block, whether from block or from --block-for, and leave what the key
has used. If the key is not blocked, the answer says so and the exit code is 1.

` + rowHelp,
		Example: `  pglimit unblock alice`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.order(cmd, &flags, order{Verb: "unblock", Key: args[0]},
				func(p limiter.Policy, before row) (string, bool) {
					switch {
					case before.blocked:
						return done("unblocked "+args[0], p), true
					case before.there:
						return done("nothing to unblock: "+args[0]+" was not blocked", p), false
					}
					return "nothing to unblock: " + noRow(args[0], p), false
				},
				func(l *limiter.Limiter, p limiter.Policy) error { return l.Unblock(cmd.Context(), p, args[0]) })
		},
	}
	flags.RegisterRow(cmd)
	return cmd
}
