package commands

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

// whoseDenials says which denials a list holds.
const whoseDenials = "programs with a DenialLog and policies with count_denials"

// deniedHelp says so in help texts.
const deniedHelp = `Denials are those that programs with a DenialLog counted, and SQL functions under
policies with count_denials.`

func newFind(db *connect.Database, out *cli.Output) *cobra.Command {
	var s selection
	var rows int
	cmd := &cobra.Command{
		Use:   "find KEY",
		Short: "Show all that the database has about a key, under every policy",
		Long: `Show every row of KEY under any policy and algorithm, and its open reservations,
overrides, and counted denials of the last 24 hours. It counts nothing and locks
nothing. If there is nothing, the exit code is 1.

` + deniedHelp + `

` + keyHelp + `

With --json: {"keys": [...], "reservations": [...], "overrides": [...],
"denials": [...], "more"}; keys are as in pglimit top, and more is true if a list
was cut at --rows.`,
		Example: `  pglimit find alice
  pglimit find --prefix 203.0.113. --policy login
  pglimit find alice --json | jq '.keys[] | select(.blocked_until)'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := s.filter()
			if err != nil {
				return err
			}
			k, err := s.keys(args[0])
			if err != nil {
				return err
			}
			i, done, err := openInspector(cmd, db)
			if err != nil {
				return err
			}
			defer done()
			found, err := i.Find(cmd.Context(), k, filter, rows)
			if err != nil {
				return cli.LimiterError(err)
			}
			if found.Empty() {
				return out.Answer(cmd, false, found, fmt.Sprintf("nothing of %s %s\n", s.subject(args[0]), s.where()))
			}
			return out.Answer(cmd, true, found, foundText(found, rows))
		},
	}
	s.registerFilter(cmd)
	s.registerPrefix(cmd)
	cmd.Flags().IntVar(&rows, "rows", 100, "most `rows` of each kind, up to 10000")
	return cmd
}

// foundText renders what was found as tables.
func foundText(f inspect.Found, rows int) string {
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
		fmt.Fprintln(&text, header)
		for k := range n {
			fmt.Fprintln(&text, row(k))
		}
	}
	line := func(cells ...string) string { return strings.Join(cells, "\t") }
	section(len(f.Keys), "", strings.Join(headers(allColumns), "\t"), func(n int) string {
		return strings.Join(cells(allColumns, f.Keys[n], long), "\t")
	})
	section(len(f.Reservations), "open reservations", "POLICY\tALGORITHM\tKEY\tUNITS\tEXPIRES\tID", func(n int) string {
		r := f.Reservations[n]
		return line(printable.Shown(r.Policy), string(r.Algorithm), printable.Shown(r.Key), cli.Units(r.Units), r.ExpiresAt.Format(time.RFC3339), printable.Shown(r.ID))
	})
	section(len(f.Overrides), "overrides", "POLICY\tKEY\tCHANGES\tUNTIL\tBY\tNOTE", func(n int) string {
		o := f.Overrides[n]
		changes := overrideText(limiter.Override{Unlimited: o.Unlimited, Limit: o.Limit, Factor: o.Factor, Burst: o.Burst, Shadow: o.Shadow})
		return line(printable.Shown(o.Policy), printable.Shown(o.Key), changes, long(o.Until), printable.Shown(o.ChangedBy), printable.Shown(o.Note))
	})
	section(len(f.Denials), "denials of the last 24 hours, of "+whoseDenials, "POLICY\tALGORITHM\tKEY\tDENIALS\tLET PASS\tUNITS\tLAST", func(n int) string {
		d := f.Denials[n]
		return line(printable.Shown(d.Policy), string(d.Algorithm), printable.Shown(d.Key), fmt.Sprint(d.Denials), fmt.Sprint(d.Shadowed), cli.Units(d.Units), d.LastDeniedAt.Format(time.RFC3339))
	})
	if f.More {
		fmt.Fprintf(&text, "\nthere is more than --rows %d\n", rows)
	}
	return cli.Aligned(text.String())
}

func newTop(db *connect.Database, out *cli.Output) *cobra.Command {
	var s selection
	var by string
	var every time.Duration
	var once bool
	q := inspect.TopQuery{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the keys that are fullest, denied most, or used last",
		Long: `Show keys of all policies and algorithms in an order:

  share    the fullest first: their level as a share of their burst; the default
  denials  the most denied in 24 hours first
  recent   the last used first

On a terminal it refreshes every --every until Ctrl-C. Elsewhere, with --once or
with --json, it prints them once. It counts nothing and locks nothing. share and
recent read all rows: with millions of them, select one policy or order by
denials. Keys are shown as stored: hashed if the limiters have a KeySecret.

` + deniedHelp + `

With --json: {"by", "keys": [{"policy", "algorithm", "key", "level", "burst",
"share", "remaining", "blocked_until", "updated_at", "empty_at", "reservations",
"denials", "last_denied_at"}]}; these are the columns of the view pglimit_keys.
They are null where there is no value.`,
		Example: `  pglimit top
  pglimit top --by denials --policy login
  pglimit top --once --json | jq -r '.keys[] | select(.share >= 1) | .key'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			q.By = inspect.Order(by)
			if !slices.Contains(inspect.Orders, q.By) {
				return fmt.Errorf("--by is %q: use share, denials or recent", by)
			}
			if every < 100*time.Millisecond || every > time.Hour {
				return fmt.Errorf("--every is %s: it must be from 100ms to 1h", duration.Format(every))
			}
			if q.Filter, err = s.filter(); err != nil {
				return err
			}
			i, done, err := openInspector(cmd, db)
			if err != nil {
				return err
			}
			defer done()
			ask := func(ctx context.Context) ([]inspect.Key, error) { return i.Top(ctx, q) }
			keys, err := ask(cmd.Context())
			if err != nil {
				return cli.LimiterError(err)
			}
			if screen, ok := newScreen(cmd.OutOrStdout()); ok && !once && !out.JSON {
				title := "pglimit top by " + by + strings.TrimSuffix(" "+s.where(), " under any policy")
				return live{screen, ask, every, title, time.Now}.run(cmd.Context(), keys)
			}
			if keys == nil {
				keys = []inspect.Key{}
			}
			return out.Print(cmd, topResult{q.By, keys}, topText(q.By, keys))
		},
	}
	s.registerFilter(cmd)
	flags := cmd.Flags()
	flags.StringVar(&by, "by", string(inspect.ByShare), "`order`: share, denials or recent")
	flags.IntVar(&q.Limit, "rows", 20, "most `keys`, up to 1000")
	cli.DurationVar(flags, &q.Within, "within", 0, "only keys used in this `time`, such as 1h; default: all")
	cli.DurationVar(flags, &every, "every", 2*time.Second, "`time` from one refresh to the next on a terminal, 100ms to 1h")
	flags.BoolVar(&once, "once", false, "print them once, on a terminal too")
	orders := []string{string(inspect.ByShare), string(inspect.ByDenials), string(inspect.ByRecent)}
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// topResult is the JSON of top.
type topResult struct {
	By   inspect.Order `json:"by"`
	Keys []inspect.Key `json:"keys"`
}

func topText(by inspect.Order, keys []inspect.Key) string {
	switch {
	case len(keys) == 0 && by == inspect.ByDenials:
		return "no denials of " + whoseDenials + "\n"
	case len(keys) == 0:
		return "no keys\n"
	}
	var text strings.Builder
	fmt.Fprintln(&text, strings.Join(headers(allColumns), "\t"))
	for _, k := range keys {
		fmt.Fprintln(&text, strings.Join(cells(allColumns, k, long), "\t"))
	}
	return cli.Aligned(text.String())
}
