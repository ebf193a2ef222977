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
		Short: "Decide a request, and count it if allowed",
		Long: `Decide a request for KEY, and count it if it is allowed.

With - as KEY, each line of standard input is one request: a key, white space
and an optional cost (default: --cost). In a line with a tab the key is
everything before the last tab, spaces included. Each request gets one line of
output, in order. Up to 256 lines are decided at once; the lines of one key are
decided in their order. A line is answered without waiting for the next one.
Lines that cannot be read are reported on stderr and skipped; the exit code is
then 2. A change of the policy in the database that --policy names applies to the
lines after it, within a second.

If the application hashes its keys with a secret of 16 bytes or more, set
` + connect.KeySecretEnv + ` to it.

Exit code 0: allowed (with -: done); 1: denied.`,
		Example: `  pglimit allow --limit 10 --period 1m alice && echo allowed
  pglimit allow --policy login alice
  pglimit allow --policy limits.yaml#login alice
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
