package commands

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/policies"
)

// fileHelp describes a file.
var fileHelp = `FILE is YAML or JSON; - is standard input. It has a list policies, and optionally
a list overrides:

  policies:
    - name: login
      algorithm: token_bucket
      limit: 5
      period: 1m
      burst: 10
  overrides:
    - policy: login
      key: alice
      limit: 100
      until: 2027-01-31

The fields of a policy are:
` + fieldNames(policyfile.PolicyFields) + `
Those of an override are:
` + fieldNames(policyfile.OverrideFields) + `
All faults of a file are reported, with their lines and fields, and then
nothing is changed.

A date as until is the end of that day in this machine's time zone (TZ). Overrides
that have ended are left out.

Policies and overrides that the file does not have stay. With --prune they are
deleted; overrides only if their policy is, or if the file has overrides.`

func fieldNames(fields []policyfile.Field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return wrap(names, 78, "  ")
}

func newPolicyImport(db *connect.Database, out *cli.Output) *cobra.Command {
	var prune, yes bool
	var note string
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Make the database's policies those of a file",
		Long: `Show what FILE would change, ask, and change it: all or nothing. If policies
were changed meanwhile, nothing is changed.

` + fileHelp,
		Example: `  pglimit policy import limits.yaml
  pglimit policy import --prune --yes limits.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" && !yes {
				return fmt.Errorf("FILE is -: standard input has the file, and cannot have the answer too: pass --yes")
			}
			return withPlan(cmd, db, args[0], prune, func(live *policies.Policies, plan policyfile.Plan, text string) error {
				n := len(plan.Changes)
				if n == 0 {
					return out.Print(cmd, imported{plan.Changes, plan.Edit.IfVersion}, text)
				}
				if !yes {
					fmt.Fprint(cmd.ErrOrStderr(), text)
					if err := cli.Confirm(cmd, fmt.Sprintf("make %s?", printable.Count(n, "change"))); err != nil {
						return err
					}
					text = ""
				}
				plan.Edit.Note = note
				now, err := live.Apply(cmd.Context(), plan.Edit)
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Print(cmd, imported{plan.Changes, now}, fmt.Sprintf("%s%s made\nversion %d\n", text, printable.Count(n, "change"), now))
			})
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "delete what the file does not have")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&note, "note", "", "why, for the history of all changes: a `text` of up to 1,000 characters")
	return cmd
}

// withPlan calls use with the changes that make the database equal to the file at path, and with
// their text. Overrides that have ended are left out, and it says so.
func withPlan(cmd *cobra.Command, db *connect.Database, path string, prune bool, use func(*policies.Policies, policyfile.Plan, string) error) error {
	after, err := policyfile.ReadPath(path, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if n := after.DropEnded(time.Now()); n > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: left out %s that ended before now\n", printable.Count(n, "override"))
	}
	return db.WithPolicies(cmd, func(live *policies.Policies) error {
		version := live.Version()
		before, err := storedPolicies(cmd, live)
		if err != nil {
			return err
		}
		plan := policyfile.Compare(before, after, prune)
		plan.Edit.IfVersion = version
		return use(live, plan, cmp.Or(changeText(plan.Changes...), "no changes\n"))
	})
}

// imported is the answer of import and diff in JSON.
type imported struct {
	Changes []policyfile.Change `json:"changes"`
	Version int64               `json:"version"`
}

func newPolicyDiff(db *connect.Database, out *cli.Output) *cobra.Command {
	var prune bool
	cmd := &cobra.Command{
		Use:   "diff FILE|-",
		Short: "Show what import would change",
		Long: `Show what import would change, and change nothing.

Exit code 0: nothing; 1: something.

` + fileHelp,
		Example: `  pglimit policy diff limits.yaml
  pglimit policy diff --prune limits.yaml && echo up to date`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withPlan(cmd, db, args[0], prune, func(_ *policies.Policies, plan policyfile.Plan, text string) error {
				return out.Answer(cmd, len(plan.Changes) == 0, imported{plan.Changes, plan.Edit.IfVersion}, text)
			})
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "show what --prune would delete")
	return cmd
}
