package decide

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// NewCheck returns the command check.
func NewCheck(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "check KEY",
		Short: "Report what allow would answer, and count nothing",
		Long: `Report what allow would answer for KEY, and count nothing. With --cost 0 it only
reads the state of the key; then only a block denies it.

Other requests may use up the limit after the answer. To be sure, use allow.

Exit code 0: it would be allowed; 1: it would be denied.`,
		Example: `  pglimit check --limit 10 --period 1m alice
  pglimit check --limit 10 --period 1m --cost 0 alice --json | jq .remaining`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return decide(cmd, db, out, &flags, args[0], (*limiter.Limiter).Check, human.Decision)
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}
