// Package row has the subcommands that change a key's row without a request:
// reset, block and unblock.
package row

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// rowHelp explains which flags matter to these commands.
const rowHelp = `A key is found by --name and --algorithm: use the values of the requests. Requests
with --calendar or --aligned use fixed_window, requests with --tick use
leaky_bucket, and wait uses leaky_bucket_queue. Limit, period and burst do not
matter. A key has a row from its first request until the janitor deletes it, an
hour or more after the row is empty.`

// NewReset returns the command reset.
func NewReset(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Delete what a key has used, and its block",
		Long: `Delete what KEY has used, and its block. If the key has no row, the answer says
so and the exit code is 1.

` + rowHelp,
		Example: `  pglimit reset alice
  pglimit reset --name login --algorithm gcra alice`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return order{
				verb: "reset", key: args[0],
				do: func(l *limiter.Limiter, p limiter.Policy) error { return l.Reset(cmd.Context(), p, args[0]) },
				text: func(p limiter.Policy, before state) (string, bool) {
					if !before.exists {
						return "nothing to reset: " + noRow(args[0], p), false
					}
					return done("reset "+args[0], p), true
				},
			}.run(cmd, db, out, &flags)
		},
	}
	flags.RegisterRow(cmd)
	return cmd
}

// NewBlock returns the command block.
func NewBlock(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "block KEY DURATION",
		Short: "Deny all requests of a key for a while",
		Long: `Deny all requests of KEY for DURATION, or until the end of an earlier block if
that is later. DURATION is a number and a unit: ns, us, ms, s, m or h.

A key without a row is blocked too. Because a wrong --name or --algorithm may be
the reason, the answer then says so and the exit code is 1.

` + rowHelp,
		Example: `  pglimit block alice 15m
  pglimit block --name login --algorithm gcra 203.0.113.7 24h`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := time.ParseDuration(args[1])
			if err != nil {
				return fmt.Errorf("DURATION is %q: use a number and a unit, such as 15m or 24h", args[1])
			}
			return order{
				verb: "block", key: args[0], lasts: d,
				do: func(l *limiter.Limiter, p limiter.Policy) error { return l.Block(cmd.Context(), p, args[0], d) },
				text: func(p limiter.Policy, before state) (string, bool) {
					if !before.exists {
						return fmt.Sprintf("%s; it is blocked now, for %v", noRow(args[0], p), d), false
					}
					return done(fmt.Sprintf("blocked %s for %v", args[0], d), p), true
				},
			}.run(cmd, db, out, &flags)
		},
	}
	flags.RegisterRow(cmd)
	return cmd
}

// NewUnblock returns the command unblock.
func NewUnblock(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "unblock KEY",
		Short: "Remove a key's block",
		Long: `Remove KEY's block, whether from block or from --block-for, and keep what the key
has used. If the key is not blocked, the answer says so and the exit code is 1.

` + rowHelp,
		Example: `  pglimit unblock alice
  pglimit unblock --name login --algorithm gcra 203.0.113.7`,

		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return order{
				verb: "unblock", key: args[0],
				do: func(l *limiter.Limiter, p limiter.Policy) error { return l.Unblock(cmd.Context(), p, args[0]) },
				text: func(p limiter.Policy, before state) (string, bool) {
					switch {
					case before.blocked:
						return done("unblocked "+args[0], p), true
					case before.exists:
						return done("nothing to unblock: "+args[0]+" was not blocked", p), false
					}
					return "nothing to unblock: " + noRow(args[0], p), false
				},
			}.run(cmd, db, out, &flags)
		},
	}
	flags.RegisterRow(cmd)
	return cmd
}
