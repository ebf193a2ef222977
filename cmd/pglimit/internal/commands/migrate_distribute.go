package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/cluster"
)

// distributed is the JSON of distribute.
type distributed struct {
	Applied    bool             `json:"applied"`
	Statements []string         `json:"statements"` // run or, with --dry-run, to run
	Cluster    *cluster.Cluster `json:"cluster"`    // after them
}

func newMigrateDistribute(db *connect.Database, out *cli.Output) *cobra.Command {
	var d cluster.Distribution
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "distribute",
		Short: "Spread the tables over the nodes of a Citus cluster",
		Long: `Spread the tables of keys over the nodes of a Citus cluster, by key, and create
the functions through which statements reach one shard. Run it on the
coordinator, as the owner of the tables, after up. Policies, overrides and the
janitor's lease stay on the coordinator.

It does in one transaction what is not yet done, and may be run again: do so after
each update of pglimit, and after up. Rows move to the shards. Meanwhile
decisions wait, for about a second and one more for each million rows. Roles
that may write to the tables get the right to execute the functions.

The number of shards cannot be changed later without --undo, which moves all rows
back to the coordinator. Shards move between nodes by Citus's own functions.`,
		Example: `  pglimit migrate distribute --dry-run
  pglimit migrate distribute
  pglimit migrate distribute --shards 8
  pglimit migrate distribute --undo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("functions"):
				return errors.New("--functions does not go with distribute, which leaves the SQL functions on the coordinator: leave it out")
			case cmd.Flags().Changed("shards") && d.Undo:
				return errors.New("--shards does not go with --undo: leave one out")
			case cmd.Flags().Changed("shards") && d.Shards < 1:
				return fmt.Errorf("--shards is %d: pass at least 1, or leave it out for the default", d.Shards)
			}
			pool, err := db.OpenUnmigrated(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			return distribute(cmd, pool, out, d, dryRun)
		},
	}
	cmd.Flags().IntVar(&d.Shards, "shards", 0, "`number` of shards of each table; default: two for each node, at least 4")
	cmd.Flags().BoolVar(&d.Undo, "undo", false, "move all rows back to the coordinator")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "write the SQL instead of running it")
	return cmd
}

func distribute(cmd *cobra.Command, pool *pgxpool.Pool, out *cli.Output, d cluster.Distribution, dryRun bool) error {
	do := cluster.Distribute
	if dryRun {
		do = cluster.PlanFor
	}
	began := time.Now()
	plan, err := do(cmd.Context(), pool, d)
	took := time.Since(began)
	found := plan.Found
	if err == nil && !dryRun && len(plan.Statements) > 0 {
		found, err = cluster.ReadOf(cmd.Context(), pool)
	}
	if errors.Is(err, cluster.ErrCluster) {
		return err
	}
	if err != nil {
		return cli.DatabaseError(err)
	}
	var text strings.Builder
	if dryRun {
		for _, s := range plan.Statements {
			fmt.Fprintf(&text, "%s;\n", s)
		}
	}
	switch {
	case len(plan.Statements) == 0:
		fmt.Fprintf(&text, "nothing to do\n")
	case !dryRun:
		fmt.Fprintf(&text, "ran %d statements (%s)\n", len(plan.Statements), took.Round(time.Millisecond))
	}
	if !dryRun || len(plan.Statements) == 0 {
		fmt.Fprintf(&text, "%s\n", found.Summary())
	}
	return out.Print(cmd, distributed{!dryRun, append([]string{}, plan.Statements...), found}, text.String())
}

// distributeAgain returns a warning if the tables are distributed, and this release has
// something to distribute or other functions.
func distributeAgain(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	c, err := cluster.ReadOf(ctx, pool)
	if err != nil || c == nil || len(c.Distributed) == 0 || len(c.Local)+len(c.Missing) == 0 && !c.Outdated {
		return nil, err
	}
	return []string{"the tables are distributed, and this release changes what is: run `pglimit migrate distribute`"}, nil
}
