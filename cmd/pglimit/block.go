package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

func newBlock(a *app) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "block KEY DURATION",
		Short: "Deny a key for a while, whatever it has used",
		Long: `Deny KEY for DURATION from now on, whatever it has used, or until the end of an
earlier block if that is later. DURATION is a number and a unit: ns, us, ms, s,
m or h.

A key without a row is blocked too. As that may mean a wrong --name or
--algorithm, the answer says so and the exit code is 1.

` + rowHelp,
		Example: `  pglimit block alice 15m
  pglimit block --name login --algorithm gcra 203.0.113.7 24h`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[1])
			if err != nil {
				return fmt.Errorf("DURATION is %q: take a number and a unit, such as 15m or 24h", args[1])
			}
			return a.order(cmd, &flags, order{Verb: "block", Key: args[0], For: d.Seconds()},
				func(p limiter.Policy, before row) (string, bool) {
					if !before.there {
						return fmt.Sprintf("%s; it is blocked now, for %v", noRow(args[0], p), d), false
					}
					return done(fmt.Sprintf("blocked %s for %v", args[0], d), p), true
				},
				func(l *limiter.Limiter, p limiter.Policy) error { return l.Block(cmd.Context(), p, args[0], d) })
		},
	}
	flags.RegisterRow(cmd)
	return cmd
}
