package commands

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newAllowAny(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags many
	var cost float64
	var split bool
	cmd := &cobra.Command{
		Use:   "allow-any KEY...",
		Short: "Request one cost of the first of several pools that has it",
		Long: `Request one cost that any of several pools may give, in the order of --policy:
the first that has room for all of it gives it. With --split, the first gives what
fits, the next what is left, and so on, or none gives anything. --policy is given once
for each KEY; one KEY goes with all policies. The same holds for --floor. A repeated
call with the same --idempotency-key and the same pools returns what they gave.

With --json: {"allowed", "granted_by", "retry_after_s", "per_request": [...]};
granted_by is the number, from 0, of the pool that gave, of several the first, or null.

Exit code 0: allowed; 1: denied.`,
		Example: `  pglimit allow-any --policy weekly --policy credits --policy overdraft alice
  pglimit allow-any --policy weekly --policy credits --cost 40 --split alice --json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, keys []string) error {
			flags.costs = []string{printable.Number(cost)}
			return flags.with(cmd, db, keys, func(l *limiter.Limiter, requests []limiter.Request) error {
				ask := l.AllowAny
				if split {
					ask = l.AllowAnySplit
				}
				a, err := ask(cmd.Context(), requests...)
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Answer(cmd, a.Allowed, a, anyText(requests, a))
			})
		},
	}
	flags.register(cmd, "pool")
	cli.UnitsVar(cmd.Flags(), &cost, "cost", 1, "`units` that are asked of the pools")
	cmd.Flags().BoolVar(&split, "split", false, "split the cost among the pools")
	return cmd
}

// anyText says what each pool gave.
func anyText(requests []limiter.Request, a limiter.Any) string {
	var text strings.Builder
	if !a.Allowed {
		text.WriteString("denied, nothing was counted:\n")
	}
	for i, r := range a.PerRequest {
		answer := "not asked"
		switch {
		case r.Granted > 0:
			answer = fmt.Sprintf("gave %s: %s", cli.Units(r.Granted), cli.Left(r))
		case r.Source != limiter.SourceSkipped:
			answer = cli.Decision(r) + cli.Floored(requests[i], r)
		}
		fmt.Fprintf(&text, "%s\t%s\t%s\n", requests[i].Policy.Name, printable.Shown(requests[i].Key), answer)
	}
	return cli.Aligned(text.String())
}
