// Package policy has the subcommands for the policies in the database.
package policy

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/limiter"
)

// New returns the command policy.
func New(db *connect.Database, out *cli.Output) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Change and show the policies in the database",
		Long: `Change and show the policies that live in the database. Programs that read them
with limiter.OpenPolicies, the SQL functions by name and commands with --policy
use a change within a second. What a key has used is carried over.`,
		Example: `  pglimit policy set login --limit 5 --period 1m --burst 10
  pglimit policy list
  pglimit policy import limits.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSet(db, out), newGet(db, out), newList(db, out), newDelete(db, out), newHistory(db, out),
		newImport(db, out), newDiff(db, out), newExport(db, out), newSuggest(db, out))
	return cmd
}

// find returns the stored policy of that name, or nil.
func find(policies *limiter.Policies, name string) *limiter.StoredPolicy {
	all := policies.List()
	if i := slices.IndexFunc(all, func(p limiter.StoredPolicy) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// missing answers that there is no policy of that name.
func missing(cmd *cobra.Command, out *cli.Output, name string) error {
	return out.Answer(cmd, false, map[string]any{"name": name, "found": false},
		fmt.Sprintf("there is no policy %q: `pglimit policy list` lists them\n", name))
}

// stored returns what the database has, as a file.
func stored(policies *limiter.Policies) policyfile.File {
	return policyfile.File{Policies: policies.List(), Overrides: policies.Overrides("")}
}
