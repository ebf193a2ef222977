package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

func newReserve(db *connect.Database, out *cli.Output) *cobra.Command {
	return reserving(db, out, &cobra.Command{
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
	}, (*limiter.Limiter).Reserve)
}

func newReserveUpTo(db *connect.Database, out *cli.Output) *cobra.Command {
	return reserving(db, out, &cobra.Command{
		Use:   "reserve-up-to KEY",
		Short: "Set aside what fits of some units",
		Long: `Set up to --cost units of KEY aside for --ttl: whole units for a whole --cost.
Otherwise it is as reserve. A second request with the same --idempotency-key
returns the same reservation, also if more would fit now.

Exit code 0: some are reserved; 1: none fits.`,
		Example: `  pglimit reserve-up-to --limit 100000 --calendar month --cost 4000 --ttl 10m alice`,
	}, (*limiter.Limiter).ReserveUpTo)
}

// reserving makes cmd set units aside by a method.
func reserving(db *connect.Database, out *cli.Output, cmd *cobra.Command, do func(*limiter.Limiter, context.Context, limiter.Request, time.Duration) (limiter.Reservation, error)) *cobra.Command {
	var flags policyflags.Flags
	var ttl time.Duration
	var idempotencyKey string
	var estimate bool
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
			request := flags.Request(d.Policy, args[0])
			request.IdempotencyKey, request.Estimate = idempotencyKey, estimate
			h, err := do(d.Limiter, cmd.Context(), request, ttl)
			if err != nil {
				return cli.LimiterError(err)
			}
			text := cli.Decision(h.Result) + cli.Floored(request, h.Result)
			if h.Result.Allowed {
				text = fmt.Sprintf("reserved %s until %s as %s: %s", cli.Units(h.Result.Granted), cli.Moment(h.ExpiresAt), h.ID, cli.Left(h.Result))
			}
			return out.Answer(cmd, h.Result.Allowed, h, text+"\n")
		})
	}
	flags.RegisterRequest(cmd)
	flags.RegisterFloor(cmd)
	flags.RegisterNote(cmd)
	cmd.Flags().BoolVar(&estimate, "estimate", false, "correct --cost by what the key's earlier estimates have really spent")
	cli.DurationVar(cmd.Flags(), &ttl, "ttl", 10*time.Minute, "`time` until the reservation expires, at least 1s")
	cmd.Flags().StringVar(&idempotencyKey, "idempotency-key", "", "count requests with the same `text` once")
	return cmd
}

func newSettle(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "settle ID UNITS",
		Short: "End a reservation and record what was spent",
		Long: `End reservation ID and record UNITS, 0 or more, as spent. If that is less than
was reserved, the rest goes back. If it is more, all of it is recorded, even
above the limit. It may be repeated with the same UNITS.

Exit code 0: settled; 1: nothing was changed, because there is no such
reservation, or it was settled with other UNITS or cancelled before (found and
ended in the JSON).`,
		Example: `  pglimit settle fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:cli:YWxpY2U 180
  pglimit settle "$id" 180 --json | jq .level`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			spent, err := cli.ParseUnits(args[1])
			if err != nil {
				return fmt.Errorf("UNITS is %.80q: %w", args[1], err)
			}
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				r, err := l.Settle(cmd.Context(), args[0], spent)
				if err != nil {
					return notOpen(cmd, out, ending{Verb: "settle", ID: args[0]}, err)
				}
				return out.Print(cmd, r, settled(r, spent)+"\n")
			})
		},
	}
}

// settled says what a settle has done.
func settled(r limiter.Result, spent float64) string {
	text := fmt.Sprintf("settled with %s: %s", cli.Units(spent), cli.Left(r))
	switch {
	case r.Source == limiter.SourceSkipped:
		text = "nothing was counted for this reservation"
	case r.Replayed:
		text += "; it was settled before"
	case r.Expired:
		text += "; the reservation had expired"
	}
	return text
}

// ending is the JSON of cancel, and of a settle that changed nothing.
type ending struct {
	Verb string   `json:"verb"`
	ID   string   `json:"id,omitempty"`
	IDs  []string `json:"ids,omitempty"` // of settle-all and cancel-all
	// Found reports whether there is such a reservation. Ended reports whether it had
	// ended in another way before, which Message describes.
	Found   bool   `json:"found"`
	Ended   bool   `json:"ended"`
	Message string `json:"message,omitempty"`
}

// notOpen returns the error of settle or cancel. That there is no such reservation, or that
// it had ended in another way, is an answer: no.
func notOpen(cmd *cobra.Command, out *cli.Output, end ending, err error) error {
	none, ended := errors.Is(err, limiter.ErrNoReservation), errors.Is(err, limiter.ErrReservationEnded)
	if !none && !ended {
		return cli.LimiterError(err)
	}
	end.Found, end.Ended, end.Message = !none, ended, strings.TrimPrefix(err.Error(), "pglimit: ")
	return out.Answer(cmd, false, end, "nothing to "+end.Verb+": "+end.Message+"\n")
}

func newCancel(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "End a reservation and give it back",
		Long: `End reservation ID and give its units back. A bucket gets back only what has
not leaked since. It may be repeated.

Exit code 0: cancelled; 1: nothing was changed, because there is no such
reservation, or it was settled before (found and ended in the JSON).`,
		Example: `  pglimit cancel fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:cli:YWxpY2U
  pglimit cancel "$id"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				if err := l.Cancel(cmd.Context(), args[0]); err != nil {
					return notOpen(cmd, out, ending{Verb: "cancel", ID: args[0]}, err)
				}
				return out.Print(cmd, ending{Verb: "cancel", ID: args[0], Found: true}, "cancelled "+args[0]+"\n")
			})
		},
	}
}
