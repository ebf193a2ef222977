package inspect

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/replay"
)

// NewFind returns the command find.
func NewFind(db *connect.Database, out *cli.Output) *cobra.Command {
	var s selection
	var limit int
	cmd := &cobra.Command{
		Use:   "find KEY",
		Short: "Show all that the database has about a key, under every policy",
		Long: `Show every row of KEY under any policy and algorithm, and its open reservations,
overrides, and denials of the last 24 hours, where programs keep them. It counts
nothing and locks nothing. If there is nothing, the exit code is 1.

` + keyHelp + `

With --json: {"keys": [...], "reservations": [...], "overrides": [...],
"denials": [...], "more"}; keys are as in pglimit top, and more is true if a list
was cut at --limit.`,
		Example: `  pglimit find alice
  pglimit find --prefix 203.0.113. --name login
  pglimit find alice --json | jq '.keys[] | select(.blocked_until)'`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := s.filter()
			if err != nil {
				return err
			}
			k, err := s.keys(args[0])
			if err != nil {
				return err
			}
			i, done, err := open(cmd, db)
			if err != nil {
				return err
			}
			defer done()
			found, err := i.Find(cmd.Context(), k, filter, limit)
			if err != nil {
				return failed(err)
			}
			if found.Empty() {
				return out.Answer(cmd, false, found, fmt.Sprintf("nothing of %s %s\n", s.subject(args[0]), s.where()))
			}
			return out.Answer(cmd, true, found, foundText(found, limit))
		},
	}
	s.registerFilter(cmd)
	s.registerPrefix(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "most `rows` of each kind, up to 10000")
	return cmd
}

// foundText renders what was found as tables.
func foundText(f inspect.Found, limit int) string {
	var text strings.Builder
	section := func(n int, title, header string, row func(int) string) {
		if n == 0 {
			return
		}
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		if title != "" {
			text.WriteString(title + "\n")
		}
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, header)
		for k := range n {
			fmt.Fprintln(table, row(k))
		}
		_ = table.Flush() // to a Builder
	}
	line := func(cells ...string) string { return strings.Join(cells, "\t") }
	section(len(f.Keys), "", strings.Join(headers(allColumns), "\t"), func(n int) string {
		return strings.Join(cells(allColumns, f.Keys[n], long), "\t")
	})
	section(len(f.Reservations), "open reservations", "POLICY\tALGORITHM\tKEY\tUNITS\tEXPIRES\tID", func(n int) string {
		r := f.Reservations[n]
		return line(replay.Shown(r.Policy), string(r.Algorithm), replay.Shown(r.Key), human.Units(r.Units), r.ExpiresAt.Format(time.RFC3339), r.ID)
	})
	section(len(f.Overrides), "overrides", "POLICY\tKEY\tCHANGES\tUNTIL\tBY\tNOTE", func(n int) string {
		o := f.Overrides[n]
		return line(replay.Shown(o.Policy), replay.Shown(o.Key), overrideText(o), long(o.Until), replay.Shown(o.ChangedBy), replay.Shown(o.Note))
	})
	section(len(f.Denials), "denials of the last 24 hours", "POLICY\tALGORITHM\tKEY\tDENIALS\tLET PASS\tUNITS\tLAST", func(n int) string {
		d := f.Denials[n]
		return line(replay.Shown(d.Policy), string(d.Algorithm), replay.Shown(d.Key), fmt.Sprint(d.Denials), fmt.Sprint(d.Shadowed), human.Units(d.Units), d.LastDeniedAt.Format(time.RFC3339))
	})
	if f.More {
		fmt.Fprintf(&text, "\nthere is more than --limit %d\n", limit)
	}
	return text.String()
}

// overrideText lists what an override changes.
func overrideText(o inspect.Override) string {
	var all []string
	if o.Unlimited {
		all = append(all, "unlimited")
	}
	if o.Limit != nil {
		all = append(all, "limit "+human.Units(*o.Limit))
	}
	if o.Burst != nil {
		all = append(all, "burst "+human.Units(*o.Burst))
	}
	if o.Shadow != nil {
		all = append(all, fmt.Sprintf("shadow %v", *o.Shadow))
	}
	return strings.Join(all, ", ")
}
