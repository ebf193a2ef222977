package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/inspect"
)

// NewTop returns the command top.
func NewTop(db *connect.Database, out *cli.Output) *cobra.Command {
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
  denials  the most denied in 24 hours first, where programs keep denials
  recent   the last used first

On a terminal it refreshes every --every until Ctrl-C. Elsewhere, with --once or
with --json, it prints them once. It counts nothing and locks nothing. share and
recent read all rows: with millions of them, select one policy or order by
denials. Keys are shown as stored: hashed if the limiters have a KeySecret.

With --json: {"by", "keys": [{"policy", "algorithm", "key", "level", "burst",
"share", "remaining", "blocked_until", "updated_at", "empty_at", "reservations",
"denials", "last_denied_at"}]}; these are the columns of the view pglimit_keys.
They are null where there is no value.`,
		Example: `  pglimit top
  pglimit top --by denials --name login
  pglimit top --once --json | jq -r '.keys[] | select(.share >= 1) | .key'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			q.By = inspect.Order(by)
			if !slices.Contains(inspect.Orders, q.By) {
				return fmt.Errorf("--by is %q: use share, denials or recent", by)
			}
			if every < 100*time.Millisecond || every > time.Hour {
				return fmt.Errorf("--every is %v: it must be from 100ms to 1h", every)
			}
			if q.Filter, err = s.filter(); err != nil {
				return err
			}
			i, done, err := open(cmd, db)
			if err != nil {
				return err
			}
			defer done()
			ask := func(ctx context.Context) ([]inspect.Key, error) { return i.Top(ctx, q) }
			keys, err := ask(cmd.Context())
			if err != nil {
				return failed(err)
			}
			if screen, ok := newScreen(cmd.OutOrStdout()); ok && !once && !out.JSON {
				title := "pglimit top by " + by + strings.TrimSuffix(" "+s.where(), " under any policy")
				return live{screen, ask, every, title, time.Now}.run(cmd.Context(), keys)
			}
			if keys == nil {
				keys = []inspect.Key{}
			}
			return out.Print(cmd, topResult{q.By, keys}, topText(keys))
		},
	}
	s.registerFilter(cmd)
	flags := cmd.Flags()
	flags.StringVar(&by, "by", string(inspect.ByShare), "`order`: share, denials or recent")
	flags.IntVar(&q.Limit, "limit", 20, "most `keys`, up to 1000")
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

func topText(keys []inspect.Key) string {
	if len(keys) == 0 {
		return "no keys\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(headers(allColumns), "\t"))
	for _, k := range keys {
		fmt.Fprintln(table, strings.Join(cells(allColumns, k, long), "\t"))
	}
	_ = table.Flush() // to a Builder
	return text.String()
}
