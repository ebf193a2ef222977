package decide

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
)

// NewReserve returns the command reserve.
func NewReserve(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	var ttl time.Duration
	var idempotencyKey string
	cmd := &cobra.Command{
		Use:   "reserve KEY",
		Short: "Set units aside, to be settled or cancelled later",
		Long: `Set --cost units of KEY aside for --ttl, all or nothing. The answer has the
reservation's ID, for settle and cancel. A reservation that is neither settled
nor cancelled expires and gives its units back. A second request with the same
--idempotency-key returns the same reservation.

Exit code 0: reserved; 1: denied.`,
		Example: `  pglimit reserve --limit 100000 --calendar month --cost 250 --ttl 10m alice
  id=$(pglimit reserve --limit 100000 --calendar month --cost 250 alice --json | jq -r .id)
  pglimit settle "$id" 180`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
				request := d.Policy.Request(args[0], flags.Cost)
				request.IdempotencyKey = idempotencyKey
				h, err := d.Limiter.Reserve(cmd.Context(), request, ttl)
				if err != nil {
					return cli.LimiterError(err)
				}
				text := human.Decision(h.Result)
				if h.Result.Allowed {
					text = fmt.Sprintf("reserved %s until %s as %s: %s of %s remaining", human.Units(h.Result.Granted),
						h.Expires.Format(time.RFC3339), h.ID, human.Units(h.Result.Remaining), human.Units(h.Result.Burst))
				}
				return out.Answer(cmd, h.Result.Allowed, h, text+"\n")
			})
		},
	}
	flags.RegisterRequest(cmd)
	cli.DurationVar(cmd.Flags(), &ttl, "ttl", 10*time.Minute, "`time` until the reservation expires, at least 1s")
	cmd.Flags().StringVar(&idempotencyKey, "idempotency-key", "", "count requests with the same `text` once")
	return cmd
}
