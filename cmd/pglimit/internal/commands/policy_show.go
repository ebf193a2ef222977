package commands

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

func newPolicyGet(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show one policy",
		Long: `Show the policy NAME as YAML, in the form that import reads.

Exit code 1: there is no such policy.`,
		Example: `  pglimit policy get login
  pglimit policy get login --json | jq .limit`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				p := findPolicy(live, args[0])
				if p == nil {
					return noPolicy(cmd, out, args[0])
				}
				var text strings.Builder
				if err := (policyfile.File{Policies: []policies.Stored{*p}}).Write(&text); err != nil {
					return err
				}
				return out.Print(cmd, *p, text.String())
			})
		},
	}
}

func newPolicyList(db *connect.Database, out *cli.Output) *cobra.Command {
	var effective bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the policies in the database",
		Long: `List the policies in the database by name, each with the number of its overrides.

With --effective, list also the default policies of the programs that pglimit
programs lists, as far as no stored policy replaces them. If programs have
different ones of a name, each is listed, that of the program seen last first.
The JSON then has "defaults": [{"policy", "programs"}] too.`,
		Example: `  pglimit policy list
  pglimit policy list --effective
  pglimit policy list --json | jq -r '.policies[].name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
				answer := effectivePolicies{Policies: append([]policies.Stored{}, live.List()...)}
				if effective {
					programs, err := readPrograms(cmd, pool, live.Version())
					if err != nil {
						return err
					}
					answer.Defaults = append([]defaultPolicy{}, defaultsOf(programs, live)...)
				}
				return out.Print(cmd, answer, listText(live, answer, widthOf(cmd.OutOrStdout())))
			})
		},
	}
	cmd.Flags().BoolVar(&effective, "effective", false, "also list programs' default policies")
	return cmd
}

// effectivePolicies is the answer of list in JSON.
type effectivePolicies struct {
	Policies []policies.Stored `json:"policies"`
	Defaults []defaultPolicy   `json:"defaults,omitzero"` // nil: not wanted
}

func listText(live *policies.Policies, all effectivePolicies, width int) string {
	if len(all.Policies)+len(all.Defaults) == 0 {
		return "the database has no policies: `pglimit policy set` adds one, `pglimit policy import` those of a file\n"
	}
	t := &cli.Table{Header: []string{"NAME", "ALGORITHM", "LIMIT", "BURST", "OVERRIDES", "FLAGS", "NOTE"}}
	line := func(p policies.Stored, note string, more ...string) {
		flags := more
		if p.Shadow {
			flags = append(flags, "shadow")
		}
		if p.Askers {
			flags = append(flags, "askers")
		}
		if p.CountDenials {
			flags = append(flags, "count_denials")
		}
		limit, burst := numbersText(p.Policy)
		t.Add(p.Name, string(p.Algorithm), limit, burst,
			fmt.Sprint(live.OverrideCount(p.Name)), strings.Join(flags, ","), note)
	}
	for _, p := range all.Policies {
		line(p, quotedLine(p.Note))
	}
	for _, d := range all.Defaults {
		note := "of " + d.last.String()
		if more := len(d.Programs) - 1; more > 0 {
			note += ", and " + printable.Count(more, "more program")
		}
		line(policies.Stored{Policy: d.Policy}, note, "default")
	}
	return t.Text(width)
}

// numbersText returns a policy's limit and burst. Those that have no rate have words instead.
func numbersText(p limiter.Policy) (limit, burst string) {
	switch p.Algorithm {
	case limiter.Balance:
		return "prepaid", cli.Units(p.Overdraft) + " owed"
	case limiter.Attempts:
		return printable.Count(int(p.Limit), "failure"), cli.Units(cmp.Or(p.Burst, 1)) + " at once"
	case limiter.Concurrency:
		return cli.Units(p.Limit) + " held", duration.Format(p.Period) + " each"
	}
	return cli.Units(p.Limit) + " per " + perText(p), cli.Units(cmp.Or(p.Burst, p.Limit))
}

// perText returns a policy's period, or its calendar.
func perText(p limiter.Policy) string {
	if p.Calendar != "" {
		text := strings.TrimSpace(string(p.Calendar) + " " + p.TimeZone)
		if p.Anchor != "" {
			text += " from " + p.Anchor
		}
		return text
	}
	return duration.Format(p.Period)
}

// oneLine returns a note without control characters.
func quotedLine(note string) string {
	quoted := strconv.Quote(note)
	return quoted[1 : len(quoted)-1]
}

// historyEntry is a change in JSON.
type historyEntry struct {
	Version   int64     `json:"version"`
	ChangedAt time.Time `json:"changed_at"`
	ChangedBy string    `json:"changed_by"`
	Note      string    `json:"note,omitempty"`
	policyfile.Change
}

func newPolicyHistory(db *connect.Database, out *cli.Output) *cobra.Command {
	var rows int
	cmd := &cobra.Command{
		Use:   "history [NAME]",
		Short: "Show the changes of a policy and its overrides",
		Long: `Show the changes of the policy NAME and its overrides, or of all policies, newest
first: when, by which role, what, and the note. Changes by other programs and by
hand are among them.`,
		Example: `  pglimit policy history login
  pglimit policy history --rows 5 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if rows < 1 {
				return fmt.Errorf("--rows is %d: must be at least 1", rows)
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				changes, err := live.History(cmd.Context(), name, rows)
				if err != nil {
					return cli.LimiterError(err)
				}
				entries := make([]historyEntry, len(changes))
				var text strings.Builder
				for i, c := range changes {
					entries[i] = entryOf(c)
					entries[i].write(&text)
				}
				if len(changes) == 0 {
					text.WriteString("no changes\n")
				}
				return out.Print(cmd, map[string]any{"changes": entries}, text.String())
			})
		},
	}
	cmd.Flags().IntVar(&rows, "rows", 20, "most `changes`")
	return cmd
}

func entryOf(c policies.Change) historyEntry {
	e := historyEntry{c.Version, c.ChangedAt.UTC(), c.ChangedBy, c.Note, policyfile.ChangeOf(c)}
	if e.Action == "delete" {
		e.Fields = nil
	}
	return e
}

func (e historyEntry) write(text *strings.Builder) {
	fmt.Fprintf(text, "version %d, %s, by %s", e.Version, cli.Moment(e.ChangedAt), printable.Shown(e.ChangedBy))
	if e.Note != "" {
		fmt.Fprintf(text, ": %s", quotedLine(e.Note))
	}
	text.WriteByte('\n')
	policyfile.WriteText(text, []policyfile.Change{e.Change})
}

func newPolicyExport(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Write all policies and overrides as a file",
		Long: `Write all policies and overrides of the database as YAML, or with --json as JSON,
in the form that import reads. Overrides that have ended are left out.

If the application hashes its keys, the keys of the overrides are the hashes, and
import with PGLIMIT_KEY_SECRET would hash them again: import them without it.`,
		Example: `  pglimit policy export > limits.yaml
  pglimit policy export --json | jq '.policies | length'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return db.WithPolicies(cmd, func(live *policies.Policies) error {
				file, err := storedPolicies(cmd, live)
				if err != nil {
					return err
				}
				var text strings.Builder
				if err := file.Write(&text); err != nil {
					return err
				}
				return out.Print(cmd, file.Portable(), text.String())
			})
		},
	}
}
