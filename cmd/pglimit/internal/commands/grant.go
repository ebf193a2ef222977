package commands

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newGrant(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	var o limiter.GrantOptions
	var expires string
	cmd := &cobra.Command{
		Use:   "grant KEY UNITS",
		Short: "Add prepaid units to a balance",
		Long: `Add UNITS to the balance of KEY, under a policy of the algorithm balance. They pay
what KEY owes, and the rest is a lot: allow and charge spend from the lots, those of
the lowest --priority first, then those that expire first.

With --once a repeated grant adds nothing: name the payment there.`,
		Example: `  pglimit policy set credits --algorithm balance
  pglimit grant --policy credits acme 100 --source "invoice 1042" --once "invoice 1042"
  pglimit grant --policy credits acme 20 --expires 30d --source gift
  pglimit usage --policy credits acme`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			units, err := strconv.ParseFloat(args[1], 64)
			if err != nil {
				return fmt.Errorf("UNITS is %.80q: use a number, such as 100", args[1])
			}
			if expires != "" {
				if o.Expires, err = policyfile.ParseUntil(expires, time.Now()); err != nil {
					return fmt.Errorf("--expires is %.80q: %w", expires, err)
				}
			}
			return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
				r, err := d.Limiter.Grant(cmd.Context(), d.Policy, args[0], units, o)
				if err != nil {
					return cli.LimiterError(err)
				}
				text := fmt.Sprintf("granted %s: %s", cli.Units(r.Granted), cli.Balance(r))
				if r.Replayed {
					text += ", as before: nothing was added"
				}
				return out.Print(cmd, r, text+"\n")
			})
		},
	}
	flags.RegisterBalance(cmd)
	cmd.Flags().StringVar(&expires, "expires", "", "the last `day` on which the units can be spent: 2027-01-31, friday, or 30d; or a time; default: none")
	cmd.Flags().IntVar(&o.Priority, "priority", 0, "lower is spent first, from -1000 to 1000")
	cmd.Flags().StringVar(&o.Source, "source", "", "what the units are: a `text` of up to 255 bytes")
	cmd.Flags().StringVar(&o.Note, "note", "", "what the grant is for, in its ledger: a `text` of up to 255 bytes; see pglimit ledger")
	cmd.Flags().StringVar(&o.IdempotencyKey, "once", "", "add the units once for this `key`, such as a payment's number")
	return cmd
}

// balanceUsage returns a Usage of a balance as rows of two columns.
func balanceUsage(u limiter.Usage) string {
	text := fmt.Sprintf("granted\t%s\nspent\t%s\nexpired\t%s\nremaining\t%s", cli.Units(u.Granted), cli.Units(u.Spent), cli.Units(u.Expired), cli.Units(u.Result.Remaining))
	if u.Result.Burst > 0 {
		text += ", with an overdraft of " + cli.Units(u.Result.Burst)
	}
	text += "\n"
	if u.Reservations > 0 {
		text += fmt.Sprintf("reserved\t%s in %s\n", cli.Units(u.Reserved), printable.Count(u.Reservations, "open reservation"))
	}
	if u.Debt > 0 {
		text += fmt.Sprintf("owed\t%s\n", cli.Units(u.Debt))
	}
	for _, l := range u.Lots {
		text += fmt.Sprintf("lot %d\t%s", l.Number, cli.Units(l.Units))
		if l.Source != "" {
			text += " of " + strconv.Quote(l.Source)
		}
		if !l.Expires.IsZero() {
			text += " until " + cli.Moment(l.Expires)
		}
		if l.Priority != 0 {
			text += fmt.Sprintf(", priority %d", l.Priority)
		}
		text += "\n"
	}
	return text
}
