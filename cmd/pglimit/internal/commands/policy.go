package commands

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/policies"
)

func newPolicy(db *connect.Database, out *cli.Output) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Change and show the policies in the database",
		Long: `Change and show the policies that live in the database. Programs that read them
with policies.Open, the SQL functions by name and commands with --policy
use a change within a second. What a key has used is carried over.`,
		Example: `  pglimit policy set login --limit 5 --period 1m --burst 10
  pglimit policy list
  pglimit policy import limits.yaml`,
	}
	cmd.AddCommand(newPolicySet(db, out), newPolicyGet(db, out), newPolicyList(db, out), newPolicyDelete(db, out), newPolicyHistory(db, out),
		newPolicyRollback(db, out), newPolicyImport(db, out), newPolicyDiff(db, out), newPolicyExport(db, out))
	return cmd
}

// findPolicy returns the stored policy called name, or nil.
func findPolicy(live *policies.Policies, name string) *policies.Stored {
	all := live.List()
	if i := slices.IndexFunc(all, func(p policies.Stored) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// noPolicy answers that no policy is called name.
func noPolicy(cmd *cobra.Command, out *cli.Output, name string) error {
	return out.Answer(cmd, false, map[string]any{"name": name, "found": false},
		fmt.Sprintf("there is no policy %q: `pglimit policy list` lists them\n", name))
}

// stored returns what the database has, as a file.
func storedPolicies(cmd *cobra.Command, live *policies.Policies) (policyfile.File, error) {
	overrides, err := live.Overrides(cmd.Context(), "")
	return policyfile.File{Policies: live.List(), Overrides: overrides}, cli.LimiterError(err)
}

// setAnswer is the answer of set in JSON.
type setAnswer struct {
	Policy  policies.Stored         `json:"policy"`
	Fields  []policyfile.Difference `json:"fields"` // that changed
	Version int64                   `json:"version"`
	Default *program                `json:"default,omitempty"` // the program whose default policy was changed
}

func newPolicySet(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Stored
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Add a policy, or change fields of one",
		Long: `Add the policy NAME, or change it: then a flag that is not given leaves its field
as it is. --period replaces --calendar and the reverse. The policy is checked
before it is stored. The answer shows what changed.

If the database lacks the policy and a program has a default policy NAME, that
is changed and stored: of the program seen last, if they differ. It replaces
their defaults. pglimit policy list --effective shows them, and the note in the
history what was changed.

Any other new policy needs --limit, and --period or --calendar; one of --algorithm
balance needs neither. Its algorithm is token_bucket unless a flag says otherwise.

What keys have used is carried over: if it is more than the new burst, nothing
more is allowed until it has leaked or the window has ended. With another
--algorithm all keys start from zero; token_bucket and gcra continue each other.

For --algorithm attempts, pglimit attempt --help explains --limit, --period,
--burst and --block-for, for concurrency pglimit acquire --help, and for balance
pglimit grant --help.

version in the JSON is that of all policies and overrides.`,
		Example: `  pglimit policy set login --limit 5 --period 1m --burst 10 --note "as agreed with support"
  pglimit policy set login --limit 8 --dry-run
  pglimit policy set budget --limit 100000 --calendar month --time-zone Europe/Vienna
  pglimit policy set login --shadow
  pglimit policy set code --algorithm attempts --limit 3 --period 24h --block-for 1m --block-max 12h`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
				version, before := live.Version(), findPolicy(live, args[0])
				var text strings.Builder
				var from *program
				if before == nil {
					programs, err := readPrograms(cmd, pool, version)
					if err != nil {
						return err
					}
					before, from = ofProgram(&text, defaultsOf(programs, live), args[0])
				}
				after, err := flags.Patch(args[0], before)
				if err != nil {
					return err
				}
				edit := policies.Edit{IfVersion: version, Note: after.Note, Set: []policies.Stored{after}}
				if from != nil {
					edit.Note = firstNote(from, before, after)
				}
				return storePolicy(cmd, out, live, edit, before, from, text.String())
			})
		},
	}
	flags.Register(cmd)
	registerDryRun(cmd)
	return cmd
}

func registerDryRun(cmd *cobra.Command) {
	cmd.Flags().Bool("dry-run", false, "show what would change, and change nothing")
}

// storePolicy stores the policy that edit sets instead of before, nil for none, and prints what
// that changes, after text. from is the program whose default before is, or nil.
func storePolicy(cmd *cobra.Command, out *cli.Output, live *policies.Policies, edit policies.Edit, before *policies.Stored, from *program, text string) error {
	after, version, end := edit.Set[0], edit.IfVersion, "nothing was changed: --dry-run\n"
	change := policyfile.ChangePolicy(after.Name, before, &after)
	if len(change.Fields) == 0 && from == nil {
		return out.Print(cmd, setAnswer{Policy: *before, Fields: change.Fields, Version: version}, fmt.Sprintf("policy %s is so already\n", after.Name))
	}
	if dry, _ := cmd.Flags().GetBool("dry-run"); !dry {
		var err error
		if version, err = live.Apply(cmd.Context(), edit); err != nil {
			return cli.LimiterError(err)
		}
		if is := findPolicy(live, after.Name); is != nil {
			after = *is
		}
		end = fmt.Sprintf("version %d\n", version)
	}
	return out.Print(cmd, setAnswer{after, change.Fields, version, from}, text+changeText(change)+end)
}

func changeText(all ...policyfile.Change) string {
	var text strings.Builder
	policyfile.WriteText(&text, all)
	return text.String()
}

// firstNote returns the note of the first stored version of a program's default policy: after's,
// and from what it came.
func firstNote(from *program, before *policies.Stored, after policies.Stored) string {
	note, given := fmt.Sprintf("from the default of %s on %s", from.Name, from.Host), after.Note
	after.Note = ""
	if lines := strings.Split(changeText(policyfile.ChangePolicy(after.Name, before, &after)), "\n    "); len(lines) > 1 {
		note += ": " + strings.TrimSpace(strings.Join(lines[1:], ", "))
	}
	if given != "" {
		note = given + " (" + note + ")"
	}
	all := []rune(note)
	return string(all[:min(len(all), 1000)]) // characters of a note
}

func newPolicyRollback(db *connect.Database, out *cli.Output) *cobra.Command {
	var to int64
	var note string
	cmd := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Make a policy what it was at a version",
		Long: `Make the policy NAME what it was at the version --to, also if it was deleted since.
That is a change like any other: its version is a new one, and what keys have used
is carried over. Overrides stay. pglimit policy history shows the versions.

Exit code 1: there was no such policy at that version.`,
		Example: `  pglimit policy rollback login --to 12 --dry-run
  pglimit policy rollback login --to 12 --note "the release was taken back"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to < 1 {
				return fmt.Errorf("--to is %d: give a version that `pglimit policy history %s` shows", to, args[0])
			}
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				version, before := live.Version(), findPolicy(live, args[0])
				if to > version {
					return fmt.Errorf("--to is %d: the policies have version %d", to, version)
				}
				was, err := live.AtVersion(cmd.Context(), args[0], to)
				switch {
				case err != nil:
					return cli.LimiterError(err)
				case was == nil:
					return out.Answer(cmd, false, map[string]any{"name": args[0], "found": false},
						fmt.Sprintf("there was no policy %s at version %d: `pglimit policy history` shows the versions\n", args[0], to))
				}
				was.Note = note
				edit := policies.Edit{IfVersion: version, Note: cmp.Or(note, fmt.Sprintf("back to version %d", to)), Set: []policies.Stored{*was}}
				return storePolicy(cmd, out, live, edit, before, nil, "")
			})
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "the `version` to go back to")
	cmd.Flags().StringVar(&note, "note", "", "why, for the history: a `text` of up to 1,000 characters; default: back to version VERSION")
	registerDryRun(cmd)
	return cmd
}

// ofProgram returns the default policy called name and the program seen last that has it, or
// nil. It writes which one that is, and which other defaults the stored policy replaces.
func ofProgram(text *strings.Builder, defaults []defaultPolicy, name string) (*policies.Stored, *program) {
	all := slices.DeleteFunc(defaults, func(d defaultPolicy) bool { return d.Policy.Name != name })
	if len(all) == 0 {
		return nil, nil
	}
	fmt.Fprintf(text, "from the default of %v\n", all[0].last)
	for _, other := range all[1:] {
		fmt.Fprintf(text, "not from that of %v: limit %s per %s\n", other.last, cli.Units(other.Policy.Limit), perText(other.Policy))
	}
	return &policies.Stored{Policy: all[0].Policy}, all[0].last
}

func newPolicyDelete(db *connect.Database, out *cli.Output) *cobra.Command {
	var note string
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a policy",
		Long: `Delete the policy NAME from the database. Programs then use the policy of that
name that they were compiled with, or get ErrNoPolicy. Keys keep what they have
used, and overrides stay. Without --yes it asks.

Exit code 1: there is no such policy.`,
		Example: `  pglimit policy delete login --note "replaced by login2"
  pglimit policy delete login --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				version := live.Version()
				if findPolicy(live, args[0]) == nil {
					return noPolicy(cmd, out, args[0])
				}
				if !yes {
					if err := cli.Confirm(cmd, "delete policy "+args[0]+"?"); err != nil {
						return err
					}
				}
				now, err := live.Apply(cmd.Context(), policies.Edit{IfVersion: version, Note: note, Delete: []string{args[0]}})
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Print(cmd, map[string]any{"name": args[0], "found": true, "version": now},
					fmt.Sprintf("deleted policy %s\nversion %d\n", args[0], now))
			})
		},
	}
	cmd.Flags().StringVar(&note, "note", "", "why, for the history: a `text` of up to 1,000 characters")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
