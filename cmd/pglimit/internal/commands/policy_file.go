package commands

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
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
			after, err := policyfile.ReadPath(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			dropEnded(cmd, &after)
			return db.WithPolicies(cmd, func(policies *limiter.Policies) error {
				version := policies.Version()
				before, err := storedPolicies(cmd, policies)
				if err != nil {
					return err
				}
				plan := policyfile.Compare(before, after, prune)
				n := len(plan.Changes)
				if n == 0 {
					return out.Print(cmd, imported{plan.Changes, version}, "no changes\n")
				}
				var text strings.Builder
				policyfile.WriteText(&text, plan.Changes)
				if !yes {
					fmt.Fprint(cmd.ErrOrStderr(), text.String())
					if err := cli.Confirm(cmd, fmt.Sprintf("make %s?", printable.Count(n, "change"))); err != nil {
						return err
					}
					text.Reset()
				}
				plan.Edit.IfVersion, plan.Edit.Note = version, note
				now, err := policies.Apply(cmd.Context(), plan.Edit)
				if err != nil {
					return cli.LimiterError(err)
				}
				fmt.Fprintf(&text, "%s made\nversion %d\n", printable.Count(n, "change"), now)
				return out.Print(cmd, imported{plan.Changes, now}, text.String())
			})
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "delete what the file does not have")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&note, "note", "", "why, for the history of all changes: a `text` of up to 1,000 characters")
	return cmd
}

// dropEnded leaves out the overrides of a file that have ended, and says so.
func dropEnded(cmd *cobra.Command, file *policyfile.File) {
	if n := file.DropEnded(time.Now()); n > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: left out %s that ended before now\n", printable.Count(n, "override"))
	}
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
			after, err := policyfile.ReadPath(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			dropEnded(cmd, &after)
			return db.WithPolicies(cmd, func(policies *limiter.Policies) error {
				before, err := storedPolicies(cmd, policies)
				if err != nil {
					return err
				}
				plan := policyfile.Compare(before, after, prune)
				var text strings.Builder
				policyfile.WriteText(&text, plan.Changes)
				if len(plan.Changes) == 0 {
					text.WriteString("no changes\n")
				}
				return out.Answer(cmd, len(plan.Changes) == 0, imported{plan.Changes, policies.Version()}, text.String())
			})
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "show what --prune would delete")
	return cmd
}
