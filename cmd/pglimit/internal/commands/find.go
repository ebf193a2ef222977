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
  pglimit find --part alice
  pglimit find --prefix 203.0.113. --policy login
  pglimit find alice --json | jq '.keys[] | select(.blocked)'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := s.filter()
			if err != nil {
				return err
			}
			if err := s.checkKey(args[0]); err != nil {
				return err
			}
			i, done, err := openInspector(cmd, db)
			if err != nil {
				return err
			}
			defer done()
			k, err := s.keys(cmd, out, i, args[0], filter, 10_000)
			if err != nil {
				return err
			}
			found, err := i.Find(cmd.Context(), k, filter, rows)
			if err != nil {
				return cli.LimiterError(err)
			}
			if found.Empty() {
				return out.Answer(cmd, false, found, fmt.Sprintf("nothing of %s %s\n", s.subject(args[0]), s.where()))
			}
			key := args[0]
			if s.many() {
				key = "" // as stored
			}
			return out.Answer(cmd, true, found, foundText(found, rows, widthOf(cmd.OutOrStdout()), s.many())+liftText(found.Keys, key))
		},
	}
	s.registerFilter(cmd)
	s.registerPrefix(cmd)
	cmd.Flags().IntVar(&rows, "rows", 100, "most `rows` of each kind, up to 10000")
	return cmd
}

// foundText returns the text of f as tables of at most rows lines and width columns. many adds
// a column for the key; without it all rows are of one key.
func foundText(f inspect.Found, rows, width int, many bool) string {
	var text strings.Builder
	section := func(title string, t *cli.Table) {
		if len(t.Rows) == 0 {
			return
		}
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		if title != "" {
			text.WriteString(title + "\n")
		}
		text.WriteString(t.Text(width))
	}
	at := short(time.Now())
	key := func(text string) string {
		if many {
			return printable.Shown(text)
		}
		return "-"
	}
	columns := foundColumns
	if many {
		columns = printedColumns
	}
	section("", keyTable(columns, f.Keys))
	t := &cli.Table{Header: []string{"POLICY", "KEY", "UNITS", "EXPIRES", "ID"}}
	for _, r := range f.Reservations {
		t.Add(printable.Shown(r.Policy), key(r.Key), cli.Units(r.Units), at(&r.ExpiresAt), printable.Shown(r.ID))
	}
	section("open reservations", t)
	t = &cli.Table{Header: []string{"POLICY", "KEY", "OVERRIDE", "BY", "NOTE"}}
	for _, o := range f.Overrides {
		t.Add(printable.Shown(o.Policy), key(o.Key), overrideText(o.Stored()), printable.Shown(o.ChangedBy), printable.Shown(o.Note))
	}
	section("overrides", t)
	t = &cli.Table{Header: []string{"POLICY", "KIND", "KEY", "DENIED", "LET PASS", "UNITS", "LAST"}}
	for _, d := range f.Denials {
		t.Add(printable.Shown(d.Policy), kinds[d.Algorithm], key(d.Key), fmt.Sprint(d.Denials), fmt.Sprint(d.Shadowed), cli.Units(d.Units), at(&d.LastDeniedAt))
	}
	section("denials of the last 24 hours,\nof "+whoseDenials, t)
	if f.More {
		fmt.Fprintf(&text, "\nthere is more than --rows %d\n", rows)
	}
	return text.String()
}

func newTop(db *connect.Database, out *cli.Output) *cobra.Command {
	var s selection
	var by string
	var every time.Duration
	var once bool
	q := inspect.TopQuery{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the keys that are limited now, fullest, or used last",
		Long: `Show keys of all policies and algorithms in an order:

  denials  the most denied of the last --within first, 5 minutes by default,
           with or without a row
  share    keys whose row is blocked, then the fullest: their level as a share of
           their burst
  recent   the last requested first; denied requests count, as far as denials do

The default is denials if there are any, and else share. On a terminal it
refreshes every --every until Ctrl-C. Elsewhere, with --once or with --json, it
prints them once. It counts nothing and locks nothing. share and recent read all
rows: with millions of them, select one policy or order by denials. Keys are
shown as stored: hashed if the limiters have a KeySecret.

A key's status is the first of these that applies:

  shadow   its policy is a shadow, which denies nothing
  blocked  until the time under BLOCKED, or by an override without an end
  limited  a request of cost 1 is denied now, or one was in the last minute and the
           key is not empty since
  ok

Where keys are hashed, blocks by prefix, pattern or network are not shown: pass
the key to pglimit why. Below the list are commands that lift blocks.

` + deniedHelp + ` A denial is shown after about 5 seconds.

With --json: {"by", "since", "keys": [{"policy", "algorithm", "key", "level",
"burst", "share", "remaining", "blocked_until", "updated_at", "empty_at",
"reservations", "denials", "last_denied_at", "recent_denials", "recent_shadowed",
"retry_at", "last_request_at", "shadow", "blocked", "blocked_by",
"denials_per_minute", "status"}]}; the first 13 are as in the view pglimit_keys.
Recent denials are those from since on, and blocked_by is the override that blocks.
Values are null where there is none.`,
		Example: `  pglimit top
  pglimit top --by denials --within 1h --policy login
  pglimit top --once --json | jq -r '.keys[] | select(.status == "limited") | .key'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			q.By = inspect.Order(by)
			if by != "" && !slices.Contains(inspect.Orders, q.By) {
				return fmt.Errorf("--by is %q: use denials, share or recent", by)
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
			ask := func(ctx context.Context) (inspect.Top, error) { return i.Top(ctx, q) }
			top, err := ask(cmd.Context())
			if err != nil {
				return cli.LimiterError(err)
			}
			if screen, ok := newScreen(cmd.OutOrStdout()); ok && !once && !out.JSON {
				return live{screen, ask, every, strings.TrimSuffix(" "+s.where(), " under any policy"), time.Now}.run(cmd.Context(), top)
			}
			return out.Print(cmd, top, topText(top, widthOf(cmd.OutOrStdout())))
		},
	}
	s.registerFilter(cmd)
	flags := cmd.Flags()
	flags.StringVar(&by, "by", "", "`order`: denials, share or recent; default: denials if there are any")
	flags.IntVar(&q.Limit, "rows", 20, "most `keys`, up to 1000")
	cli.DurationVar(flags, &q.Within, "within", 0, "only keys used or denied in this `time`, such as 1h; default: all, and denials of 5m")
	cli.DurationVar(flags, &every, "every", 2*time.Second, "`time` from one refresh to the next on a terminal, 100ms to 1h")
	flags.BoolVar(&once, "once", false, "print them once, on a terminal too")
	orders := []string{string(inspect.ByDenials), string(inspect.ByShare), string(inspect.ByRecent)}
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func topText(top inspect.Top, width int) string {
	switch {
	case len(top.Keys) == 0 && top.By == inspect.ByDenials:
		return "no denials of " + whoseDenials + " since " + cli.Moment(top.Since) + "\n"
	case len(top.Keys) == 0:
		return "no keys\n"
	}
	columns := printedColumns
	if top.By == inspect.ByRecent {
		columns = append(slices.Clone(columns), requestColumn)
	}
	return keyTable(columns, top.Keys).Text(width) + liftText(top.Keys, "")
}
