package commands

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newReserveAll(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags many
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "reserve-all KEY...",
		Short: "Set units of several keys aside at once, all or nothing",
		Long: `Set units of several keys aside for --ttl: all are reserved, or none. --policy is
given once for each KEY, in the same order; one --policy goes with all keys, and
one KEY with all policies. The same holds for --cost and --floor. The answer has an
ID for each, in order, for settle-all and cancel-all. A repeated call with the same
--idempotency-key and the same requests returns the same reservations.

With --json: {"ids": [...], "expires_at", "results"}; results is as of allow-all.

Exit code 0: reserved; 1: denied.`,
		Example: `  pglimit reserve-all --policy tokens acme --policy company all --cost 4000 --ttl 5m
  ids=$(pglimit reserve-all --policy tokens --policy spend acme --cost 4000 --json | jq -r '.ids[]')
  pglimit settle-all $ids --units 2310`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, keys []string) error {
			return flags.with(cmd, db, keys, func(l *limiter.Limiter, requests []limiter.Request) error {
				made, err := l.ReserveAll(cmd.Context(), ttl, requests...)
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Answer(cmd, made.Results.Allowed, made, reservedText(requests, made))
			})
		},
	}
	flags.register(cmd, "KEY")
	flags.registerCosts(cmd)
	cli.DurationVar(cmd.Flags(), &ttl, "ttl", 10*time.Minute, "`time` until the reservations expire, at least 1s")
	return cmd
}

// reservedText lists the reservations, or names the limit that denied them.
func reservedText(requests []limiter.Request, made limiter.Reservations) string {
	if !made.Results.Allowed {
		return allText(requests, made.Results)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "reserved until %s:\n", cli.Moment(made.ExpiresAt))
	for i, r := range made.Results.PerRequest {
		fmt.Fprintf(&text, "%s\t%s\t%s: %s\t%s\n", requests[i].Policy.Name, printable.Shown(requests[i].Key),
			cli.Units(r.Granted), cli.Left(r), made.IDs[i])
	}
	return cli.Aligned(text.String())
}

func newSettleAll(db *connect.Database, out *cli.Output) *cobra.Command {
	var spent []string
	cmd := &cobra.Command{
		Use:   "settle-all ID...",
		Short: "End several reservations and record the units spent",
		Long: `End the reservations of all IDs and record --units, 0 or more, as spent: given once,
of each of them; or given once for each ID, in the same order. All are settled, or
none. It may be repeated with the same --units.

With --json: {"results": [...]}, in the order of the IDs.

Exit code 0: settled; 1: nothing was changed, because one of the reservations does
not exist, or was settled with other units or cancelled before (found and ended in
the JSON).`,
		Example: `  pglimit settle-all $ids --units 2310
  pglimit settle-all "$tokens" "$cents" --units 2310 --units 12`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if len(spent) == 0 {
				return errors.New("--units is missing: give the units spent, once for all reservations or once for each ID")
			}
			units := make([]float64, len(spent))
			for i, text := range spent {
				var err error
				if units[i], err = cli.ParseUnits(text); err != nil {
					return fmt.Errorf("--units is %.80q: %w", text, err)
				}
			}
			if len(units) != 1 && len(units) != len(ids) {
				return fmt.Errorf("--units is given %d times, for %d reservations: give it once, or once for each ID", len(units), len(ids))
			}
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				all, err := l.SettleAll(cmd.Context(), ids, units...)
				if err != nil {
					return notOpen(cmd, out, ending{Verb: "settle-all", IDs: ids}, err)
				}
				var text strings.Builder
				for i, r := range all {
					fmt.Fprintf(&text, "%s\t%s\n", ids[i], settled(r, nth(units, i)))
				}
				return out.Print(cmd, map[string][]limiter.Result{"results": all}, cli.Aligned(text.String()))
			})
		},
	}
	cmd.Flags().StringArrayVar(&spent, "units", nil, "`units` spent of each reservation; once, or once for each ID")
	return cmd
}

func newCancelAll(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel-all ID...",
		Short: "End several reservations and give them back",
		Long: `End the reservations of all IDs and give their units back: all, or none. A bucket
gets back only what has not leaked since. It may be repeated.

Exit code 0: cancelled; 1: nothing was changed, because one of the reservations
does not exist, or was settled before (found and ended in the JSON).`,
		Example: `  pglimit cancel-all $ids
  pglimit cancel-all "$tokens" "$cents"`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				if err := l.CancelAll(cmd.Context(), ids...); err != nil {
					return notOpen(cmd, out, ending{Verb: "cancel-all", IDs: ids}, err)
				}
				return out.Print(cmd, ending{Verb: "cancel-all", IDs: ids, Found: true}, "cancelled "+strings.Join(ids, "\ncancelled ")+"\n")
			})
		},
	}
}
