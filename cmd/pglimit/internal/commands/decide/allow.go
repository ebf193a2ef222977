package decide

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// NewAllow returns the command allow.
func NewAllow(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	cmd := &cobra.Command{
		Use:   "allow KEY|-",
		Short: "Ask whether a key may go on, and count it if so",
		Long: `Ask whether KEY may go on, and count it if so.

With - for KEY, each line of standard input is a key and, after white space, a
cost (default --cost); with a tab in the line the key is all before the last
one, spaces included. Each line is answered by a line, in order. A line that
cannot be read is told on stderr and passed over; the exit code is then 2.

Exit code 0: allowed (with -: done); 1: denied. ` + connect.KeySecretEnv + ` is the secret
that keys are hashed with, if the application has one.`,
		Example: `  pglimit allow --limit 10 --period 1m alice && echo go on
  pglimit allow --algorithm gcra --limit 100 --period 1h --burst 20 --cost 5 alice --json
  pglimit allow --limit 1000 --calendar month --time-zone Europe/Vienna alice
  cut -d' ' -f1 access.log | pglimit allow --limit 60 --period 1m - | sort | uniq -c`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" {
				return allowLines(cmd, db, out, &flags)
			}
			return decide(cmd, db, out, &flags, args[0], (*limiter.Limiter).AllowN, human.Decision)
		},
	}
	flags.RegisterRequest(cmd)
	return cmd
}
