package commands

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/policies"
)

func newOverride(db *connect.Database, out *cli.Output) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "override",
		Short: "Give one key another limit, or none, or exempt many",
		Long: `Give one key of a policy another limit or burst, or none, until a date. Programs
that pass limiter.Config.Policies, the SQL functions by name and commands with
--policy use it within a second.

If the application hashes its keys, set ` + connect.KeySecretEnv + ` to its secret: the
database then has the key's hash, and list shows that.`,
		Example: `  pglimit override set alice --policy login --limit 100 --until 2027-01-31 --note trial
  pglimit override set 10.0.0.0/8 --cidr --policy login --unlimited --note office
  pglimit override list --policy login`,
	}
	cmd.AddCommand(newOverrideSet(db, out), newOverrideGet(db, out), newOverrideList(db, out), newOverrideDelete(db, out))
	return cmd
}

// overrideCommand completes cmd, which acts on the override of KEY under the policy that
// --policy names: before, which is nil if there is none.
func overrideCommand(db *connect.Database, cmd *cobra.Command, run func(cmd *cobra.Command, pool *pgxpool.Pool, live *policies.Policies, of policies.Override, before *policies.Override) error) *cobra.Command {
	var policy string
	var s selection
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if policy == "" {
			return errors.New("--policy is missing: name the policy, such as --policy login")
		}
		return db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
			of := policies.Override{Policy: policy, Key: args[0], Match: s.match()}
			before, err := findOverride(cmd, live, of)
			if err != nil {
				return err
			}
			return run(cmd, pool, live, of, before)
		})
	}
	cmd.Flags().StringVar(&policy, "policy", "", "`name` of the policy")
	cmd.Flags().BoolVar(&s.prefix, "prefix", false, "all keys that begin with KEY")
	s.registerMatch(cmd)
	return cmd
}

// findOverride returns the override that the database has for what of names, or nil.
func findOverride(cmd *cobra.Command, live *policies.Policies, of policies.Override) (*policies.Override, error) {
	all, err := live.Overrides(cmd.Context(), of.Policy)
	if of.Match == "" {
		of.Key = keys.Stored(of.Key, connect.KeySecret())
	}
	if i := slices.IndexFunc(all, func(o policies.Override) bool { return o.Key == of.Key && o.Match == of.Match }); i >= 0 {
		return &all[i], nil
	}
	return nil, cli.LimiterError(err)
}

// noOverride answers that there is no override of that policy and key.
func noOverride(cmd *cobra.Command, out *cli.Output, of policies.Override) error {
	return out.Answer(cmd, false, overrideAnswer(of, false), fmt.Sprintf("there is no %s: `pglimit override list` lists them\n", nameOf(of)))
}

func overrideAnswer(of policies.Override, found bool) map[string]any {
	answer := map[string]any{"policy": of.Policy, "key": of.Key, "found": found}
	if of.Match != "" {
		answer["match"] = of.Match
	}
	return answer
}

// nameOf names an override for a sentence.
func nameOf(of policies.Override) string {
	return fmt.Sprintf("override of %s for %s%s", of.Policy, policyfile.MatchText(of.Match), printable.Shown(of.Key))
}

// overrideSet is the answer of set in JSON.
type overrideSet struct {
	Override policies.Override       `json:"override"`
	Fields   []policyfile.Difference `json:"fields"` // that changed
	Version  int64                   `json:"version"`
}

const overrideSetHelp = `Set the override of KEY under --policy, instead of an earlier one. What no flag
gives is as the policy has it, but the note of an earlier one stays. What the key
has used is carried over. The answer shows what changed.

The database, a program that pglimit programs lists, or a row has the policy. For
one to come, pass --new.

--until is the last day on which it applies, to midnight in this machine's time
zone (TZ): a date, today, tomorrow or a weekday. It may also be a time, or a time
from now such as 30d.

--limit 10x is ten times the policy's limit, also after that changes. Without --burst
the policy's burst changes in proportion to the limit.

--unlimited lets all requests of the key pass, also while it is blocked, and counts
none. With --prefix, --pattern or --cidr it does so for many keys, also those to
come, and exempts them from blocks that pglimit block made with such a flag. A
policy can have 1,000 of both, and 100 patterns. At most 100,000 overrides can be
set.`

func newOverrideSet(db *connect.Database, out *cli.Output) *cobra.Command {
	var limit amount
	var burst float64
	var unlimited, shadow, fresh bool
	var until, note string
	var set policies.Override // without its policy and key
	cmd := overrideCommand(db, &cobra.Command{
		Use:   "set KEY",
		Short: "Set the override of a key",
		Long:  overrideSetHelp,
		Example: `  pglimit override set alice --policy login --limit 100 --until 2027-01-31 --note trial
  pglimit override set monitoring --policy api --unlimited
  pglimit override set big-customer --policy api --limit 10x
  pglimit override set 10.0.0.0/8 --cidr --policy api --unlimited --note office`,
		PreRunE: func(cmd *cobra.Command, _ []string) error { // wrong flags need no database
			set.Unlimited, set.Note = unlimited, note
			given := cmd.Flags().Changed
			if given("shadow") {
				set.Shadow = &shadow
			}
			var err error
			if set.Until, err = untilFlag(until, time.Time{}); err != nil {
				return err
			}
			if given("limit") {
				set.Limit = &limit.units
				if limit.factor != 0 {
					set.Limit, set.Factor = nil, &limit.factor
				}
			}
			if given("burst") {
				set.Burst = &burst
			}
			if err := policyfile.Check(set); err != nil {
				return fmt.Errorf("the override %w", err)
			}
			return nil
		},
	}, func(cmd *cobra.Command, pool *pgxpool.Pool, live *policies.Policies, o policies.Override, before *policies.Override) error {
		if before == nil && !fresh {
			if err := knownPolicy(cmd, pool, live, o.Policy); err != nil {
				return err
			}
		}
		set.Policy, set.Key, set.Match = o.Policy, o.Key, o.Match
		return setOverride(cmd, out, live, set, before)
	})
	flags := cmd.Flags()
	flags.Var(&limit, "limit", "`units` allowed per period, or a multiple of the policy's, such as 10x")
	cli.UnitsVar(flags, &burst, "burst", 0, "`units` allowed at once; 0: same as the limit; default: in proportion to the limit")
	flags.StringVar(&set.Anchor, "anchor", "", "`moment` at which a period of the policy's calendar begins: 2024-01-31 or 2024-01-31T09:30")
	flags.BoolVar(&unlimited, "unlimited", false, "let all requests pass")
	flags.BoolVar(&shadow, "shadow", false, "decide and report, but never deny; --shadow=false: deny although the policy is a shadow")
	flags.StringVar(&until, "until", "", "the last `day`: 2027-01-31, friday, or 30d; or a time such as 2027-01-31T18:00:00Z; default: none")
	flags.StringVar(&note, "note", "", "why: a `text` of up to 1,000 characters; default: that of an earlier override of KEY")
	flags.BoolVar(&fresh, "new", false, "also under a policy that is not known yet")
	return cmd
}

// knownPolicy returns an error with the names that may be meant, unless the database, a program
// or a row has a policy called name.
func knownPolicy(cmd *cobra.Command, pool *pgxpool.Pool, live *policies.Policies, name string) error {
	if findPolicy(live, name) != nil {
		return nil
	}
	i := inspect.New(pool)
	defaults, _, err := i.Defaults(cmd.Context())
	if _, known := defaults[name]; known || err != nil {
		return cli.LimiterError(err)
	}
	rows, err := i.Top(cmd.Context(), inspect.TopQuery{By: inspect.ByRecent, Filter: inspect.Filter{Policy: name}, Limit: 1})
	if err != nil || len(rows.Keys) > 0 {
		return cli.LimiterError(err)
	}
	names := slices.Collect(maps.Keys(defaults))
	for _, p := range live.List() {
		names = append(names, p.Name)
	}
	return fmt.Errorf("--policy is %.80q: neither the database nor a program nor a row has it%s For a policy to come, pass --new",
		name, cmp.Or(didYouMean(name, slices.Sorted(slices.Values(names)), ""), "."))
}

// untilFlag returns the end that --until names, or other without it.
func untilFlag(until string, other time.Time) (time.Time, error) {
	if until == "" {
		return other, nil
	}
	end, err := policyfile.ParseUntil(until, time.Now())
	if err != nil {
		return end, fmt.Errorf("--until is %.80q: %w", until, err)
	}
	return end.UTC(), nil
}

// setOverride stores an override instead of before, which is nil if there is none. Without
// --note it keeps the note of before.
func setOverride(cmd *cobra.Command, out *cli.Output, live *policies.Policies, o policies.Override, before *policies.Override) error {
	edit := policies.Edit{Note: o.Note}
	if before != nil && !cmd.Flags().Changed("note") {
		o.Note = before.Note
	}
	edit.SetOverrides = []policies.Override{o}
	change := policyfile.ChangeOverride(before, &o)
	change.Key = o.Key // before has the key as it is stored
	if len(change.Fields) == 0 {
		return out.Print(cmd, overrideSet{*before, change.Fields, live.Version()}, "the "+nameOf(o)+" is so already\n")
	}
	version, err := live.Apply(cmd.Context(), edit)
	if err != nil {
		return cli.LimiterError(err)
	}
	if _, err := live.Get(o.Policy); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: the database has no policy %s: the override applies to programs that were compiled with one\n", o.Policy)
	}
	o.Version = version
	return out.Print(cmd, overrideSet{o, change.Fields, version}, changeText(change)+fmt.Sprintf("version %d\n", version))
}

func newOverrideGet(db *connect.Database, out *cli.Output) *cobra.Command {
	return overrideCommand(db, &cobra.Command{
		Use:   "get KEY",
		Short: "Show the override of a key",
		Long: `Show the override of KEY under --policy as YAML, in the form that import reads.

Exit code 1: there is none.`,
		Example: `  pglimit override get alice --policy login
  pglimit override get alice --policy login --json | jq .limit`,
	}, func(cmd *cobra.Command, _ *pgxpool.Pool, _ *policies.Policies, of policies.Override, o *policies.Override) error {
		if o == nil {
			return noOverride(cmd, out, of)
		}
		var text strings.Builder
		if err := (policyfile.File{Overrides: []policies.Override{*o}}).Write(&text); err != nil {
			return err
		}
		return out.Print(cmd, *o, text.String())
	})
}

// amount is the pflag.Value of units, or of a multiple of the policy's: 10x.
type amount struct{ units, factor float64 }

func (a *amount) Set(text string) error {
	number, multiple := strings.CutSuffix(text, "x")
	v, err := cli.ParseUnits(number)
	switch {
	case err != nil || multiple && v <= 0:
		return errors.New("use a number, such as 10 or 2.5, or a multiple of the policy's, such as 10x")
	case multiple:
		*a = amount{factor: v}
	default:
		*a = amount{units: v}
	}
	return nil
}

// Type makes the flag a number in help texts.
func (a *amount) Type() string { return "number" }

func (a *amount) String() string {
	if a.factor != 0 {
		return cli.Units(a.factor) + "x"
	}
	return cli.Units(a.units)
}

// overrideText lists what an override changes, and until when.
func overrideText(o policies.Override) string {
	var parts []string
	if o.Limit != nil {
		parts = append(parts, "limit "+cli.Units(*o.Limit))
	}
	if o.Factor != nil {
		parts = append(parts, "limit "+cli.Units(*o.Factor)+"x")
	}
	if o.Burst != nil {
		parts = append(parts, "burst "+cli.Units(*o.Burst))
	}
	if o.Anchor != "" {
		parts = append(parts, "anchor "+o.Anchor)
	}
	if o.Unlimited {
		parts = append(parts, "unlimited")
	}
	if o.Blocked {
		parts = append(parts, "blocked")
	}
	if o.Shadow != nil {
		parts = append(parts, fmt.Sprintf("shadow %v", *o.Shadow))
	}
	if !o.Until.IsZero() {
		parts = append(parts, "until "+policyfile.ShowEnd(o.Until, time.Local))
	}
	return policyfile.MatchText(o.Match) + strings.Join(parts, ", ")
}

func newOverrideList(db *connect.Database, out *cli.Output) *cobra.Command {
	var policy string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the overrides",
		Long:  `List the overrides by policy and key. Those that have ended are left out.`,
		Example: `  pglimit override list --policy login
  pglimit override list --json | jq '.overrides | length'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				all, err := live.Overrides(cmd.Context(), policy)
				if err != nil {
					return cli.LimiterError(err)
				}
				t := &cli.Table{Header: []string{"POLICY", "KEY", "OVERRIDE", "NOTE"}}
				for _, o := range all {
					t.Add(o.Policy, printable.Shown(o.Key), overrideText(o), printable.Shown(o.Note))
				}
				text := "no overrides\n"
				if len(all) > 0 {
					text = t.Text(widthOf(cmd.OutOrStdout()))
				}
				return out.Print(cmd, map[string]any{"overrides": append([]policies.Override{}, all...)}, text)
			})
		},
	}
	cmd.Flags().StringVar(&policy, "policy", "", "only those of the policy of this `name`; default: all")
	return cmd
}

func newOverrideDelete(db *connect.Database, out *cli.Output) *cobra.Command {
	var note string
	var yes bool
	cmd := overrideCommand(db, &cobra.Command{
		Use:   "delete KEY",
		Short: "Delete the override of a key",
		Long: `Delete the override of KEY under --policy. The policy's own numbers then apply.
Without --yes it asks.

Exit code 1: there is none.`,
		Example: `  pglimit override delete alice --policy login --note "the trial is over"
  pglimit override delete alice --policy login --yes`,
	}, func(cmd *cobra.Command, _ *pgxpool.Pool, live *policies.Policies, of policies.Override, before *policies.Override) error {
		what := nameOf(of)
		if before != nil && !yes {
			if err := cli.Confirm(cmd, fmt.Sprintf("delete the %s: %s?", what, overrideText(*before))); err != nil {
				return err
			}
		}
		version, err := live.Apply(cmd.Context(), policies.Edit{Note: note, DeleteOverrides: []policies.Override{of}}) // one that has ended, too
		switch {
		case errors.Is(err, policies.ErrNoPolicy):
			return noOverride(cmd, out, of)
		case err != nil:
			return cli.LimiterError(err)
		}
		answer := overrideAnswer(of, true)
		answer["version"] = version
		return out.Print(cmd, answer, fmt.Sprintf("deleted the %s\nversion %d\n", what, version))
	})
	cmd.Flags().StringVar(&note, "note", "", "why, for the history: a `text` of up to 1,000 characters")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
