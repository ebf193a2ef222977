// Package decide has the subcommands that decide and record requests:
//   - allow, check, wait, charge and refund take effect at once
//   - reserve, settle and cancel first set units aside
//   - usage shows what a key has spent
package decide

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// verb is a method of Limiter that answers a request.
type verb func(*limiter.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)

// decide runs do for key and prints its Result; text is the form without --json.
func decide(cmd *cobra.Command, db *connect.Database, out *cli.Output, flags *policyflags.Flags,
	key string, do verb, text func(limiter.Result) string) error {
	return db.WithPolicy(cmd, flags, nil, func(d connect.Decider) error {
		r, err := do(d.Limiter, cmd.Context(), d.Policy, key, flags.Cost)
		if err != nil {
			return cli.LimiterError(err)
		}
		return out.Answer(cmd, r.Allowed, r, text(r)+"\n")
	})
}
