package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// changeHelp explains what the commands that change rows have in common.
const changeHelp = `--prefix takes all keys that begin with KEY, up to --max rows. It asks first on a
terminal; elsewhere it needs --yes. Rows are changed in transactions of 100. If
another transaction holds a row, it is tried again for 10s, after all others.

With --json: {"verb", "key", "prefix", "found", "rows", "changed": [{"policy",
"algorithm", "rows", ...}]}; found is false and the exit code 1 if there was
nothing to change.`

// change is one run of a command that changes rows.
type change struct {
	selection
	verb, past string // block, blocked
	max        int
	yes        bool
	all        bool          // every algorithm, for rows that are not there
	asks       bool          // even for one key
	traces     bool          // list what forget removes
	lasts      time.Duration // of a block
	do         func(context.Context, *inspect.Inspector, []inspect.Target, inspect.Options) ([]inspect.Count, error)
	// more changes what is not among the targets, after them.
	more func(context.Context, *inspect.Inspector, []inspect.Target) ([]inspect.Count, error)
	// nothing says why there was nothing to change, and the next step.
	nothing func(targets int) string
}

// result is the JSON of a change.
type result struct {
	Verb   string  `json:"verb"`
	Key    string  `json:"key"`
	Prefix bool    `json:"prefix"`
	For    float64 `json:"for_s,omitempty"`
	// Found reports whether there was something to change: a row or, for unblock, a block.
	Found   bool            `json:"found"`
	Rows    int64           `json:"rows"`
	Changed []inspect.Count `json:"changed"`
}

func (c *change) register(cmd *cobra.Command) {
	c.registerFilter(cmd)
	c.registerPrefix(cmd)
	cmd.Flags().BoolVar(&c.all, "all-algorithms", false, "under every algorithm: the default, and for block --new a block under each")
	cmd.MarkFlagsMutuallyExclusive("all-algorithms", "algorithm")
	cmd.Flags().IntVar(&c.max, "max", 10_000, "most `rows` that --prefix may find; with more it changes none")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask")
}

// run finds the rows, asks if it has to, changes them and prints what was done.
func (c *change) run(cmd *cobra.Command, db *connect.Database, out *cli.Output, key string) error {
	filter, err := c.filter()
	if err != nil {
		return err
	}
	k, err := c.keys(key)
	if err != nil {
		return err
	}
	if c.max < 1 {
		return fmt.Errorf("--max is %d: it must be at least 1", c.max)
	}
	asks := (c.asks || c.prefix) && !c.yes
	terminal := cli.OnTerminal(cmd.InOrStdin()) && cli.OnTerminal(cmd.ErrOrStderr())
	if asks && !terminal {
		return fmt.Errorf("%s needs --yes where it cannot ask: check with `pglimit find` what there is", c.verb)
	}
	i, done, err := open(cmd, db)
	if err != nil {
		return err
	}
	defer done()
	ctx := cmd.Context()
	targets, err := i.Targets(ctx, k, filter, c.max, c.traces)
	if errors.Is(err, inspect.ErrTooMany) {
		return fmt.Errorf("%s has more than %d rows: narrow it, or raise --max", c.subject(key), c.max)
	}
	if err != nil {
		return failed(err)
	}
	if asks && len(targets) > 0 {
		if err := cli.Confirm(cmd, c.question(key, targets)); err != nil {
			return err
		}
	}
	counts, err := c.do(ctx, i, targets, inspect.Options{Progress: progress(cmd.ErrOrStderr())})
	if err == nil && c.more != nil {
		var more []inspect.Count
		more, err = c.more(ctx, i, targets)
		counts = append(counts, more...)
	}
	if err != nil {
		if len(counts) > 0 {
			fmt.Fprint(cmd.ErrOrStderr(), "before the error: ", c.text(key, counts))
		}
		return failed(err)
	}
	r := result{Verb: c.verb, Key: key, Prefix: c.prefix, For: c.lasts.Seconds(), Found: len(counts) > 0, Changed: counts}
	for _, n := range counts {
		r.Rows += n.Rows
	}
	if !r.Found {
		r.Changed = []inspect.Count{}
		return out.Answer(cmd, false, r, "nothing to "+c.verb+": "+c.nothing(len(targets))+"\n")
	}
	return out.Answer(cmd, true, r, c.text(key, counts))
}

// question asks for the whole of targets.
func (c *change) question(key string, targets []inspect.Target) string {
	policies := map[string]bool{}
	for _, t := range targets {
		policies[t.Policy] = true
	}
	names := fmt.Sprintf("%d policies", len(policies))
	if len(policies) == 1 {
		names = "policy " + replay.Shown(targets[0].Policy)
	}
	return fmt.Sprintf("%s %s: %d %s under %s?", c.verb, c.subject(key), len(targets), human.Plural(len(targets), "row"), names)
}

// progress returns a function that shows the progress of several transactions on a
// terminal; elsewhere it shows none.
func progress(w io.Writer) func(done, all int) {
	if !cli.OnTerminal(w) {
		return nil
	}
	return func(done, all int) {
		if all > 100 {
			fmt.Fprintf(w, "\r%d of %d", done, all)
			if done == all {
				fmt.Fprintln(w)
			}
		}
	}
}

// text says what was done: in one line if it is one row.
func (c *change) text(key string, counts []inspect.Count) string {
	what := c.past + " " + c.subject(key)
	if c.lasts > 0 {
		what += fmt.Sprintf(" for %v", c.lasts)
	}
	if len(counts) == 1 && counts[0].Rows == 1 && details(counts[0]) == "1 row" {
		return fmt.Sprintf("%s (%s, %s)\n", what, replay.Shown(counts[0].Policy), counts[0].Algorithm)
	}
	var text strings.Builder
	text.WriteString(what + ":\n")
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, n := range counts {
		fmt.Fprintf(table, "%s\t%s\t%s\n", replay.Shown(n.Policy), n.Algorithm, details(n))
	}
	_ = table.Flush() // to a Builder
	return text.String()
}

// details lists what a count has: "2 rows, 1 reservation".
func details(n inspect.Count) string {
	var all []string
	for _, part := range []struct {
		count int64
		word  string
	}{{n.Rows, "row"}, {n.Reservations, "reservation"}, {n.Denials, "slot"}, {n.Overrides, "override"}, {n.History, "change"}} {
		if part.count == 0 {
			continue
		}
		word := human.Plural(int(part.count), part.word)
		switch part.word {
		case "slot":
			word += " of denials"
		case "change":
			word += " of overrides"
		}
		all = append(all, fmt.Sprintf("%d %s", part.count, word))
	}
	return strings.Join(all, ", ")
}
