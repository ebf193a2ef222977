package commands

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/limiter"
)

func newOverride(db *connect.Database, out *cli.Output) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "override",
		Short: "Give one key another limit, or none",
		Long: `Give one key of a policy another limit or burst, or none, until a date. Programs
that pass limiter.Config.Policies, the SQL functions by name and commands with
--policy use it within a second.

If the application hashes its keys, set ` + connect.KeySecretEnv + ` to its secret: the
database then has the key's hash, and list shows that.`,
		Example: `  pglimit override set login alice --limit 100 --until 2027-01-31 --note trial
  pglimit override list login`,
	}
	cmd.AddCommand(newOverrideSet(db, out), newOverrideList(db, out), newOverrideDelete(db, out))
	return cmd
}

func newOverrideSet(db *connect.Database, out *cli.Output) *cobra.Command {
	var limit, burst float64
	var unlimited, shadow bool
	var until, note string
	cmd := &cobra.Command{
		Use:   "set POLICY KEY",
		Short: "Set the override of a key",
		Long: `Set the override of KEY under POLICY, instead of an earlier one. What no flag
gives is as the policy has it. What the key has used is carried over.

--unlimited lets all requests of the key pass, also while it is blocked, and counts
none. At most 100,000 overrides can be set.`,
		Example: `  pglimit override set login alice --limit 100 --until 2027-01-31 --note trial
  pglimit override set api monitoring --unlimited
  pglimit override set api big-customer --limit 1000 --burst 2000`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := limiter.Override{Policy: args[0], Key: args[1], Unlimited: unlimited, Note: note}
			given := cmd.Flags().Changed
			if given("limit") {
				o.Limit = &limit
			}
			if given("burst") {
				o.Burst = &burst
			}
			if given("shadow") {
				o.Shadow = &shadow
			}
			if given("until") {
				end, err := policyfile.ParseUntil(until)
				if err != nil {
					return fmt.Errorf("--until is %q: %w", until, err)
				}
				o.Until = end.UTC()
			}
			if err := policyfile.Check(o); err != nil {
				return fmt.Errorf("the override %w", err)
			}
			return db.WithPolicies(cmd, func(policies *limiter.Policies) error {
				version, err := policies.Apply(cmd.Context(), limiter.PolicyEdit{SetOverrides: []limiter.Override{o}})
				if err != nil {
					return cli.LimiterError(err)
				}
				if _, err := policies.Get(args[0]); err != nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: the database has no policy %q: the override applies to programs that were compiled with one\n", args[0])
				}
				text := fmt.Sprintf("override of %s for %s: %s\nversion %d\n", o.Policy, strconv.Quote(o.Key), overrideText(o), version)
				o.Version = version
				return out.Print(cmd, o, text)
			})
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&limit, "limit", 0, "`units` allowed per period")
	flags.Float64Var(&burst, "burst", 0, "`units` allowed at once; 0: same as the limit")
	flags.BoolVar(&unlimited, "unlimited", false, "let all requests pass")
	flags.BoolVar(&shadow, "shadow", false, "decide and report, but never deny; --shadow=false: deny although the policy is a shadow")
	flags.StringVar(&until, "until", "", "the end: a `date`, which begins at 00:00 UTC, or a time such as 2027-01-31T18:00:00Z; default: none")
	flags.StringVar(&note, "note", "", "why, for the history: a `text` of up to 1,000 characters")
	return cmd
}

// overrideText lists what an override changes, and until when.
func overrideText(o limiter.Override) string {
	var parts []string
	if o.Limit != nil {
		parts = append(parts, "limit "+cli.Units(*o.Limit))
	}
	if o.Burst != nil {
		parts = append(parts, "burst "+cli.Units(*o.Burst))
	}
	if o.Unlimited {
		parts = append(parts, "unlimited")
	}
	if o.Shadow != nil {
		parts = append(parts, fmt.Sprintf("shadow %v", *o.Shadow))
	}
	if !o.Until.IsZero() {
		parts = append(parts, "until "+o.Until.UTC().Format(time.RFC3339))
	}
	return strings.Join(parts, ", ")
}

func newOverrideList(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "list [POLICY]",
		Short: "List the overrides",
		Long:  `List the overrides of POLICY, or all, by policy and key. Those that have ended are left out.`,
		Example: `  pglimit override list login
  pglimit override list --json | jq '.overrides | length'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return db.WithPolicies(cmd, func(policies *limiter.Policies) error {
				all, err := policies.Overrides(cmd.Context(), name)
				if err != nil {
					return cli.LimiterError(err)
				}
				var text strings.Builder
				fmt.Fprintln(&text, "POLICY\tKEY\tOVERRIDE\tCHANGED\tNOTE")
				for _, o := range all {
					fmt.Fprintf(&text, "%s\t%s\t%s\t%s\t%s\n", o.Policy, strconv.Quote(o.Key), overrideText(o), o.ChangedAt.UTC().Format(time.DateOnly), strconv.Quote(o.Note))
				}
				if len(all) == 0 {
					text.Reset()
					text.WriteString("no overrides\n")
				}
				return out.Print(cmd, map[string]any{"overrides": append([]limiter.Override{}, all...)}, cli.Aligned(text.String()))
			})
		},
	}
}

func newOverrideDelete(db *connect.Database, out *cli.Output) *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:   "delete POLICY KEY",
		Short: "Delete the override of a key",
		Long: `Delete the override of KEY under POLICY. The policy's own numbers then apply.

Exit code 1: there is none.`,
		Example: `  pglimit override delete login alice --note "the trial is over"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicies(cmd, func(policies *limiter.Policies) error {
				err := policies.DeleteOverride(cmd.Context(), args[0], args[1], note)
				found := map[string]any{"policy": args[0], "key": args[1], "found": err == nil}
				switch {
				case errors.Is(err, limiter.ErrNoPolicy):
					return out.Answer(cmd, false, found, fmt.Sprintf("%s has no override for %s\n", args[0], strconv.Quote(args[1])))
				case err != nil:
					return cli.LimiterError(err)
				}
				return out.Print(cmd, found, fmt.Sprintf("deleted the override of %s for %s\n", args[0], strconv.Quote(args[1])))
			})
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why, for the history: a `text` of up to 1,000 characters")
	return cmd
}
