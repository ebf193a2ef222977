package commands

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/policies"
)

func newLedger(db *connect.Database, out *cli.Output) *cobra.Command {
	var page policies.LedgerPage
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "ledger POLICY KEY",
		Short: "List what changed a balance",
		Long: `List what changed the balance of KEY under POLICY, newest first: grants, requests,
refunds and lots that have expired, with the units, what is left after it, the lots
that gave or got units, and the note. Lot 0 is the debt. A policy keeps a ledger by
policy set --ledger.

For the next page, give --before the number of the last entry.`,
		Example: `  pglimit policy set credits --algorithm balance --ledger
  pglimit allow --policy credits --cost 30 --note "order 1042" acme
  pglimit ledger credits acme --since 30d
  pglimit ledger credits acme --json --limit 1000 --before 3721`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if since < 0 || page.Limit < 1 || page.Limit > 10_000 || page.Before < 0 {
				return fmt.Errorf("--since is %v, --limit %d and --before %d: none may be negative, and --limit must be from 1 to 10000", since, page.Limit, page.Before)
			}
			if since > 0 {
				page.Since = time.Now().Add(-since)
			}
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				entries, err := live.Ledger(cmd.Context(), args[0], args[1], page)
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Print(cmd, map[string]any{"policy": args[0], "entries": entries}, ledgerText(entries))
			})
		},
	}
	cli.DurationVar(cmd.Flags(), &since, "since", 0, "how far back, such as 30d; default: all")
	cmd.Flags().IntVar(&page.Limit, "limit", 100, "most `entries`, up to 10000")
	cmd.Flags().Int64Var(&page.Before, "before", 0, "only entries with a lower `number`")
	return cmd
}

// ledgerText returns a line for each entry.
func ledgerText(entries []policies.LedgerEntry) string {
	if len(entries) == 0 {
		return "no entries: see pglimit policy set --ledger\n"
	}
	var text strings.Builder
	text.WriteString("NUMBER\tTIME\tKIND\tUNITS\tLEFT\tLOTS\tNOTE\n")
	for _, e := range entries {
		lots := make([]string, len(e.Lots))
		for i, l := range e.Lots {
			if lots[i] = fmt.Sprintf("%d: %s", l.Number, signed(l.Units)); l.Source != "" {
				lots[i] += " " + strconv.Quote(l.Source)
			}
		}
		fmt.Fprintf(&text, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Number, cli.Moment(e.At), e.Kind, signed(e.Units), cli.Units(e.Left), strings.Join(lots, ", "), printable.Shown(e.Note))
	}
	return cli.Aligned(text.String())
}

// signed returns units with their sign.
func signed(units float64) string {
	if units > 0 {
		return "+" + cli.Units(units)
	}
	return cli.Units(units)
}
