package commands

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// programName tells programs apart, in JSON too.
type programName struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Host     string `json:"host"`
	PID      int64  `json:"pid"`
}

// program is a program that follows the policies, in JSON too.
type program struct {
	programName
	Library    string           `json:"library"` // version of pglimit
	StartedAt  time.Time        `json:"started_at"`
	SeenAt     time.Time        `json:"seen_at"`
	HeartbeatS float64          `json:"heartbeat_s"`
	Version    int64            `json:"version"`  // of the policies
	Behind     bool             `json:"behind"`   // Version is not the database's
	Silent     bool             `json:"silent"`   // it missed three heartbeats
	Defaults   []limiter.Policy `json:"defaults"` // by name; nil if this program cannot read them
	seen       time.Duration    // how long ago
}

// String names a program in a sentence.
func (p *program) String() string {
	return fmt.Sprintf("%s on %s, seen %s ago", printable.Shown(p.Name), printable.Shown(p.Host), p.ago())
}

// ago returns how long ago the program was seen: in minutes, or seconds below one.
func (p *program) ago() string {
	if p.seen < time.Minute {
		return duration.Format(p.seen.Truncate(time.Second))
	}
	return duration.Format(p.seen.Truncate(time.Minute))
}

// readPrograms returns the programs that were seen in the last day, by name. version is that of
// the policies in the database. It warns of defaults that it cannot read.
func readPrograms(cmd *cobra.Command, pool *pgxpool.Pool, version int64) ([]program, error) {
	rows, err := db.New().Programs(cmd.Context(), pool)
	if err != nil {
		return nil, cli.LimiterError(exec.Translate(err, false))
	}
	all := make([]program, len(rows))
	for i, r := range rows {
		seen := time.Duration(r.SeenUs) * time.Microsecond
		all[i] = program{
			programName: programName{r.Instance, r.Name, r.Host, r.Pid}, Library: r.Library, HeartbeatS: r.HeartbeatS,
			StartedAt: time.UnixMicro(r.StartedAtUs).UTC(), SeenAt: time.UnixMicro(r.SeenAtUs).UTC(),
			Version: r.PoliciesVersion, Behind: r.PoliciesVersion != version, Silent: seen.Seconds() > 3*r.HeartbeatS, seen: seen,
		}
		switch err := json.Unmarshal([]byte(r.Defaults), &all[i].Defaults); {
		case r.Defaults == "":
			fmt.Fprintf(cmd.ErrOrStderr(), "the default policies of %v are left out: those of all programs have more than 16 MB\n", &all[i])
		case err != nil:
			all[i].Defaults = nil
			fmt.Fprintf(cmd.ErrOrStderr(), "the default policies of %v are left out: this pglimit cannot read them: %s\n", &all[i], printable.Escape(err.Error()))
		}
	}
	return all, nil
}

// defaultPolicy is a policy that programs have and the database does not.
type defaultPolicy struct {
	Policy   limiter.Policy `json:"policy"`
	Programs []programName  `json:"programs"` // that seen last first
	last     *program       // the first of these
}

// defaultsOf returns the programs' defaults that no stored policy replaces, by name. Of one name
// there are several if the programs differ; the one of the program seen last comes first.
func defaultsOf(programs []program, live *policies.Policies) (all []defaultPolicy) {
	latest := make([]*program, len(programs))
	for i := range programs {
		latest[i] = &programs[i]
	}
	slices.SortStableFunc(latest, func(a, b *program) int { return b.SeenAt.Compare(a.SeenAt) })
	for _, p := range latest {
		for _, d := range p.Defaults {
			if findPolicy(live, d.Name) != nil {
				continue
			}
			at := slices.IndexFunc(all, func(q defaultPolicy) bool { return q.Policy == d })
			if at < 0 {
				at, all = len(all), append(all, defaultPolicy{Policy: d, last: p})
			}
			all[at].Programs = append(all[at].Programs, p.programName)
		}
	}
	slices.SortStableFunc(all, func(a, b defaultPolicy) int { return strings.Compare(a.Policy.Name, b.Policy.Name) })
	return all
}

func newPrograms(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "programs",
		Short: "List the programs that follow the policies",
		Long: `List the programs that opened the policies of the database with
policies.Open, and were seen in the last 24 hours: since when they run,
when they were last seen, and which version of the policies they have.

  current   it has the version of the database
  behind    it has another one; a change arrives within about two seconds
  silent    it missed three heartbeats: it was killed, or cannot write

A program that ends in order is not listed any more. One without policies.Open,
the SQL functions and this command never are.`,
		Example: `  pglimit programs
  pglimit programs --json | jq '.programs[] | select(.behind) | .host'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
				all, err := readPrograms(cmd, pool, live.Version())
				if err != nil {
					return err
				}
				return out.Print(cmd, map[string]any{"version": live.Version(), "programs": all}, programsText(all, live.Version()))
			})
		},
	}
}

func programsText(all []program, version int64) string {
	if len(all) == 0 {
		return "no program was seen in the last 24 hours: programs with policies.Open are listed\n"
	}
	var text strings.Builder
	fmt.Fprintln(&text, "NAME\tHOST\tPID\tLIBRARY\tSTARTED\tSEEN\tPOLICIES\tDEFAULTS")
	for _, p := range all {
		state := "current"
		switch {
		case p.Silent:
			state = "silent"
		case p.Behind:
			state = "behind"
		}
		fmt.Fprintf(&text, "%s\t%s\t%d\t%s\t%s\t%s ago\t%d %s\t%d\n", printable.Shown(p.Name), printable.Shown(p.Host), p.PID, printable.Shown(p.Library),
			p.StartedAt.Format(time.DateOnly), p.ago(), p.Version, state, len(p.Defaults))
	}
	fmt.Fprintf(&text, "the policies have version %d\n", version)
	return cli.Aligned(text.String())
}
