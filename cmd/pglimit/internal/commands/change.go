package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// changeHelp explains what the commands that change rows have in common.
const changeHelp = `--prefix takes all keys that begin with KEY, and --part all keys in which KEY is one
part, up to --max rows. They ask first on a terminal; elsewhere they need --yes.
Rows are changed in transactions of 100. If another transaction holds a row, it is
tried again for 10s, after all others.

With --json: {"verb", "key", "prefix", "part", "found", "rows", "changed": [{"policy",
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
	do         func(*inspect.Inspector, context.Context, []inspect.Target, inspect.Options) ([]inspect.Count, error)
	// more changes what is not among the targets, after them.
	more func([]inspect.Target) ([]inspect.Count, error)
}

// changeResult is the JSON of a change.
type changeResult struct {
	Verb   string         `json:"verb"`
	Key    string         `json:"key"`
	Prefix bool           `json:"prefix"`
	Part   bool           `json:"part"`
	Match  policies.Match `json:"match,omitempty"` // of stored blocks: pattern or cidr
	For    float64        `json:"for_s,omitempty"`
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
	cmd.Flags().IntVar(&c.max, "max", 10_000, "most `rows` that --prefix or --part may find; with more it changes none")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask")
}

// command completes cmd, which runs c for KEY.
func (c *change) command(db *connect.Database, out *cli.Output, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return c.run(cmd, db, out, args[0]) }
	c.register(cmd)
	return cmd
}

// run finds the rows, asks if it has to, changes them and prints what was done.
func (c *change) run(cmd *cobra.Command, db *connect.Database, out *cli.Output, key string) error {
	filter, err := c.filter()
	if err != nil {
		return err
	}
	if err := c.checkKey(key); err != nil {
		return err
	}
	if c.max < 1 {
		return fmt.Errorf("--max is %d: it must be at least 1", c.max)
	}
	asks := (c.asks || c.many()) && !c.yes
	if asks && !cli.CanAsk(cmd) {
		return fmt.Errorf("%s needs --yes where it cannot ask: check with `pglimit find` what there is", c.verb)
	}
	i, done, err := openInspector(cmd, db)
	if err != nil {
		return err
	}
	defer done()
	ctx := cmd.Context()
	k, err := c.keys(cmd, out, i, key, filter, c.max)
	var targets []inspect.Target
	if err == nil {
		targets, err = i.Targets(ctx, k, filter, c.max, c.traces)
	}
	if errors.Is(err, inspect.ErrTooMany) {
		return fmt.Errorf("there are more than %s of %s: narrow it, or raise --max", printable.Count(c.max, "row"), c.subject(key))
	}
	if err != nil {
		return cli.LimiterError(err)
	}
	if asks && len(targets) > 0 {
		if err := cli.Confirm(cmd, c.question(key, targets)); err != nil {
			return err
		}
	}
	counts, err := c.do(i, ctx, targets, inspect.Options{Progress: changeProgress(cmd.ErrOrStderr())})
	if err == nil && c.more != nil {
		var more []inspect.Count
		more, err = c.more(targets)
		counts = append(counts, more...)
	}
	if err != nil {
		if len(counts) > 0 {
			fmt.Fprint(cmd.ErrOrStderr(), "before the error: ", c.text(key, counts))
		}
		return cli.LimiterError(err)
	}
	return c.report(cmd, out, key, len(targets), counts)
}

// report prints the rows that were changed.
func (c *change) report(cmd *cobra.Command, out *cli.Output, key string, targets int, counts []inspect.Count) error {
	r := changeResult{Verb: c.verb, Key: key, Prefix: c.prefix, Part: c.part, For: c.lasts.Seconds(), Found: len(counts) > 0, Changed: counts}
	if c.pattern || c.cidr {
		r.Match = c.match()
	}
	for _, n := range counts {
		r.Rows += n.Rows
	}
	if !r.Found {
		r.Changed = []inspect.Count{}
		return out.Answer(cmd, false, r, "nothing to "+c.verb+": "+c.nothing(key, targets)+"\n")
	}
	return out.Answer(cmd, true, r, c.text(key, counts))
}

// nothing says why there was nothing to change, and the next step.
func (c *change) nothing(key string, targets int) string {
	what := "row"
	switch {
	case c.traces:
		what = "trace"
	case c.verb == "unblock" && (targets > 0 || c.pattern || c.cidr):
		what = "block"
	}
	why := fmt.Sprintf("no %s of %s %s", what, c.subject(key), c.where())
	if c.verb == "block" && !c.many() {
		why += ". To block it before its first request, pass --new, --policy and --algorithm"
	}
	return why
}

// question asks for the whole of targets.
func (c *change) question(key string, targets []inspect.Target) string {
	policies := map[string]bool{}
	for _, t := range targets {
		policies[t.Policy] = true
	}
	names := printable.Count(len(policies), "policy")
	if len(policies) == 1 {
		names = "policy " + printable.Shown(targets[0].Policy)
	}
	return fmt.Sprintf("%s %s: %s under %s?", c.verb, c.subject(key), printable.Count(len(targets), "row"), names)
}

// changeProgress returns a function that shows the progress of several transactions on a
// terminal; elsewhere it shows none.
func changeProgress(w io.Writer) func(done, all int) {
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
		what += " for " + duration.Format(c.lasts)
	}
	if len(counts) == 1 && counts[0].Rows == 1 && details(counts[0]) == "1 row" {
		return fmt.Sprintf("%s (%s, %s)\n", what, printable.Shown(counts[0].Policy), counts[0].Algorithm)
	}
	var text strings.Builder
	text.WriteString(what + ":\n")
	for _, n := range counts {
		fmt.Fprintf(&text, "%s\t%s\t%s\n", printable.Shown(n.Policy), cmp.Or(string(n.Algorithm), "-"), details(n))
	}
	return cli.Aligned(text.String())
}

// details lists what a count has: "2 rows, 1 reservation".
func details(n inspect.Count) string {
	var all []string
	for _, part := range []struct {
		count      int64
		word, what string
	}{{n.Rows, "row", ""}, {n.Reservations, "reservation", ""}, {n.Denials, "slot", " of denials"}, {n.Events, "mark", ""}, {n.Sums, "sum", " of usage"}, {n.Entries, "ledger entry", ""}, {n.Overrides, "override", ""}, {n.History, "change", " of overrides"}} {
		if part.count > 0 {
			all = append(all, printable.Count(part.count, part.word)+part.what)
		}
	}
	return strings.Join(all, ", ")
}

// keyHelp explains how these commands find a key.
const keyHelp = `KEY is looked up under every policy and algorithm that has rows; --policy and
--algorithm select one. A key that a program joined of several parts by JoinKey or
httplimit.Join, such as pro1:127.0.0.1, is another key than pro1. --part finds KEY
and all keys in which it is one of the parts, in any place. It reads all keys, page
by page. Other keys with colons, such as IPv6 addresses, are split at these too.

With PGLIMIT_KEY_SECRET, KEY is hashed first. --prefix and --part are then refused,
because hashes show neither: pass whole keys. To pass a hash that top shows, unset
PGLIMIT_KEY_SECRET.`

// selection is the flags that select rows.
type selection struct {
	name, algorithm string
	prefix, part    bool
	pattern, cidr   bool // of registerMatch
}

// many reports whether the flags select several keys.
func (s *selection) many() bool { return s.prefix || s.part }

// registerFilter adds --policy and --algorithm.
func (s *selection) registerFilter(cmd *cobra.Command) {
	var names []string
	for _, a := range algorithm.All() {
		names = append(names, string(a))
	}
	cmd.Flags().StringVar(&s.name, "policy", "", "only under the policy of this `name`; default: all")
	cmd.Flags().StringVar(&s.algorithm, "algorithm", "", "only of this algorithm: "+strings.Join(names, ", ")+"; default: all")
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// registerPrefix adds --prefix and --part.
func (s *selection) registerPrefix(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.prefix, "prefix", false, "all keys that begin with KEY")
	cmd.Flags().BoolVar(&s.part, "part", false, "all keys in which KEY is one of the parts")
	cmd.MarkFlagsMutuallyExclusive("prefix", "part")
}

// registerMatch adds --pattern and --cidr to the flags of registerPrefix.
func (s *selection) registerMatch(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.pattern, "pattern", false, "all keys that match KEY: * is any characters, and ? any one")
	cmd.Flags().BoolVar(&s.cidr, "cidr", false, "all keys that are an address in the network KEY, or end in one")
	cmd.MarkFlagsMutuallyExclusive("prefix", "pattern", "cidr")
	if cmd.Flags().Lookup("part") != nil {
		cmd.MarkFlagsMutuallyExclusive("part", "pattern", "cidr")
	}
}

// match returns what an override has for the flags.
func (s *selection) match() policies.Match {
	switch {
	case s.prefix:
		return policies.MatchPrefix
	case s.pattern:
		return policies.MatchPattern
	case s.cidr:
		return policies.MatchCIDR
	}
	return ""
}

// policy returns a policy with the names in the flags, for the verbs that need no limit. An
// empty algorithm stays empty.
func (s *selection) policy() (limiter.Policy, error) {
	p := policyflags.AnyOf(s.name, limiter.Algorithm(s.algorithm))
	checked := p
	if s.name == "" {
		checked.Name = "any"
	}
	if s.algorithm == "" {
		checked.Algorithm = limiter.TokenBucket
	}
	return p, checked.Validate()
}

// filter returns the filter of the flags.
func (s *selection) filter() (inspect.Filter, error) {
	_, err := s.policy()
	return inspect.Filter{Policy: s.name, Algorithm: algorithm.Name(s.algorithm)}, err
}

// checkKey returns an error for a KEY that the flags cannot select.
func (s *selection) checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("KEY is empty: pass a key, or with --prefix at least its first character")
	case s.prefix && connect.KeySecret() != nil:
		return errors.New("--prefix does not work with " + connect.KeySecretEnv + ": keys are stored as hashes, which keep no prefix; pass whole keys")
	case s.part && connect.KeySecret() != nil:
		return errors.New("--part does not work with " + connect.KeySecretEnv + ": keys are stored as hashes, which show no parts; pass each whole key, such as " + limiter.JoinKey(key, "127.0.0.1"))
	}
	return nil
}

// keys returns the keys that the flags select, at most most with --part. If KEY is the
// first part of others that they do not select, it says so on stderr.
func (s *selection) keys(cmd *cobra.Command, out *cli.Output, i *inspect.Inspector, key string, filter inspect.Filter, most int) (inspect.Keys, error) {
	ctx, secret, stderr := cmd.Context(), connect.KeySecret(), cmd.ErrOrStderr()
	if !s.part {
		k := inspect.Keys{Text: keys.Stored(key, secret), Prefix: s.prefix, Raw: key}
		if s.prefix || secret != nil || out.JSON {
			return k, nil
		}
		n, err := i.FirstParts(ctx, key, filter, mostHinted)
		if err == nil && n > 0 {
			more := ""
			if n == mostHinted {
				more = " or more"
			}
			fmt.Fprintf(stderr, "not selected: %s%s of keys that begin with %q; --part selects them, and all other keys with the part %s\n",
				printable.Count(n, "row"), more, limiter.JoinKey(key)+":", printable.Shown(key))
		}
		return k, cli.LimiterError(err)
	}
	var progress func(int64)
	if cli.OnTerminal(stderr) {
		progress = func(rows int64) { fmt.Fprintf(stderr, "\r%s read", printable.Count(rows, "row")) }
	}
	all, err := i.WithPart(ctx, key, filter, most, progress)
	if progress != nil {
		fmt.Fprintln(stderr)
	}
	return inspect.Keys{Text: key, List: append([]string{}, all...)}, cli.LimiterError(err)
}

// mostHinted is the most rows that are counted for the hint at --part.
const mostHinted = 1000

// subject returns KEY for a sentence.
func (s *selection) subject(key string) string {
	if s.prefix {
		return "keys that begin with " + printable.Shown(key)
	}
	if s.part {
		return "keys with the part " + printable.Shown(key)
	}
	if s.pattern {
		return "keys that match " + printable.Shown(key)
	}
	if s.cidr {
		return "keys in the network " + printable.Shown(key)
	}
	return printable.Shown(key)
}

// where returns where KEY was looked up, for a sentence.
func (s *selection) where() string {
	switch {
	case s.name != "" && s.algorithm != "":
		return "under policy " + s.name + ", algorithm " + s.algorithm
	case s.name != "":
		return "under policy " + s.name
	case s.algorithm != "":
		return "under any policy, algorithm " + s.algorithm
	}
	return "under any policy"
}

// openInspector opens the database. Call done when it is not needed any more.
func openInspector(cmd *cobra.Command, db *connect.Database) (i *inspect.Inspector, done func(), err error) {
	pool, err := db.Open(cmd)
	if err != nil {
		return nil, nil, err
	}
	i = inspect.New(pool)
	i.Hashed = connect.KeySecret() != nil
	return i, pool.Close, nil
}
