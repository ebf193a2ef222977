package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/strangers"
)

func newMigrate(db *connect.Database, out *cli.Output) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create, change or remove pglimit's tables or SQL functions",
		Long: `Create, change or remove pglimit's tables in the database.

The tables are created in the first schema of search_path. The record of
migrations is in ` + sets.Tables.VersionTable() + `, separate from the record of your
application. To run pglimit's migrations with your own, use export (goose) or
print (any other tool) instead of up.

With --functions, each subcommand but grants works on the SQL functions instead, which are
for programs in other languages. They are optional; create them after the tables
and remove them before. Their record is ` + sets.Functions.VersionTable() + `.
After each update of pglimit, run up --functions again to update them.`,
		Example: `  pglimit migrate up
  pglimit migrate up --functions
  pglimit migrate grants --asker web --operator worker --apply
  pglimit migrate status`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a subcommand is missing: use up, down, status, distribute, print, export or grants")
		},
	}
	cmd.PersistentFlags().Bool("functions", false, "work on the SQL functions instead of the tables")
	cmd.AddCommand(newMigrateUp(db, out), newMigrateDown(db, out), newMigrateStatus(db, out), newMigrateDistribute(db, out), newMigratePrint(out), newMigrateExport(out), newMigrateGrants(db, out))
	return cmd
}

// set returns the migrations that --functions selects.
func migrationSet(cmd *cobra.Command) *migrate.Set {
	if functions, _ := cmd.Flags().GetBool("functions"); functions {
		return sets.Functions
	}
	return sets.Tables
}

func newMigrateUp(db *connect.Database, out *cli.Output) *cobra.Command {
	var to int64
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the migrations that have not been run yet",
		Long: `Run the migrations that have not been run yet, each in its own transaction. If
all have been run, up does nothing. If another process is migrating, up names it and
waits for at most five minutes.

First up compares what stands with what the migrations made. It makes a table, column,
constraint, index, view, trigger or function again if it is missing or was changed, and
records what stands and lost its record. A table is then empty, and roles need their
rights again: run grants. If up cannot do so, it changes nothing and says what differs.

The database user needs the right to create tables. Connect directly to the
server, or through a pooler in session mode.

If other roles may create objects in a schema of search_path, up warns and
up --functions refuses: such a role could replace objects that statements use.
Revoke the right, or give pglimit its own schema:

  REVOKE CREATE ON SCHEMA public FROM PUBLIC
  CREATE SCHEMA limits, and a connection string with ?search_path=limits`,
		Example: `  pglimit migrate up
  pglimit migrate up --to 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("to") {
				to = migrate.Latest
			}
			return runMigrations(cmd, db, out, "up", to, migrationSet(cmd).UpTo)
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "last `version` to run; default: all")
	return cmd
}

func newMigrateDown(db *connect.Database, out *cli.Output) *cobra.Command {
	var to int64
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Undo the last migration, or more",
		Long: `Undo the last migration or, with --to, all migrations after a version.

--to 0 undoes all: it drops the tables with everything that is counted. With
--functions, it drops the SQL functions, and
keeps everything that is counted.

It may run while applications use the tables. If other transactions lock the
tables for ten seconds, it gives up and can be run again. With --functions, it
waits for the running transactions, also for ten seconds.

It refuses tables that are distributed: run distribute --undo first.

It says what goes and asks. Without a terminal it needs --yes.`,
		Example: `  pglimit migrate down
  pglimit migrate down --to 1
  pglimit migrate down --to 0
  pglimit migrate down --to 0 --functions --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !cmd.Flags().Changed("to"):
				to = migrate.Previous
			case to < 0:
				return fmt.Errorf("--to is %d: use 0 to undo all, or the last version to keep", to)
			}
			return runMigrations(cmd, db, out, "down", to, migrationSet(cmd).Down)
		},
	}
	cmd.Flags().Bool("yes", false, "do not ask")
	cmd.Flags().Int64Var(&to, "to", 0, "last `version` to keep, 0 for none; default: the one before the last")
	return cmd
}

// runMigrations runs or undoes migrations and prints which ones, even if a later one
// failed.
func runMigrations(cmd *cobra.Command, db *connect.Database, out *cli.Output, direction string, to int64,
	do func(context.Context, *pgxpool.Pool, int64) ([]migrate.Step, error)) error {
	pool, err := db.OpenUnmigrated(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	warnings := []string{}
	if direction == "up" {
		if warnings, err = warnOfStrangers(cmd.Context(), pool); err != nil {
			return err
		}
	} else if err := confirmDown(cmd, pool, to); err != nil {
		return err
	}
	steps, err := do(cmd.Context(), pool, to)
	if err != nil && len(steps) == 0 {
		if errors.Is(err, migrate.ErrNoSuchVersion) || errors.Is(err, migrate.ErrDistributed) {
			return err
		}
		return cli.DatabaseError(err)
	}
	if direction == "up" && err == nil {
		again, err := distributeAgain(cmd.Context(), pool)
		if err != nil {
			return cli.DatabaseError(err)
		}
		warnings = append(warnings, again...)
	}

	type step struct {
		Version  int64    `json:"version"`
		Name     string   `json:"name"`
		Took     string   `json:"took"`
		Repaired []string `json:"repaired"` // what was missing or changed; empty: the migration was run
	}
	result := struct {
		Direction  string   `json:"direction"`
		Migrations []step   `json:"migrations"` // in the order they were run or undone
		Warnings   []string `json:"warnings"`
	}{direction, []step{}, warnings}
	var text strings.Builder
	for _, s := range steps {
		took := s.Took.Round(time.Microsecond).String()
		result.Migrations = append(result.Migrations, step{s.Version, s.Name, took, append([]string{}, s.Again...)})
		if len(s.Again) > 0 {
			fmt.Fprintf(&text, "repaired %05d %s: %s\n", s.Version, s.Name, strings.Join(s.Again, "; "))
		} else {
			fmt.Fprintf(&text, "%s %05d %s (%s)\n", direction, s.Version, s.Name, took)
		}
	}
	if len(steps) == 0 {
		fmt.Fprintf(&text, "nothing to do\n")
	}
	if !out.JSON {
		for _, w := range warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
		}
	}
	return errors.Join(cli.DatabaseError(err), out.Print(cmd, result, text.String()))
}

// confirmDown says what down would undo, and asks.
func confirmDown(cmd *cobra.Command, pool *pgxpool.Pool, to int64) error {
	if yes, _ := cmd.Flags().GetBool("yes"); yes {
		return nil
	}
	goes, err := migrationSet(cmd).Goes(cmd.Context(), pool, to)
	if errors.Is(err, migrate.ErrNoSuchVersion) || errors.Is(err, migrate.ErrDistributed) {
		return err
	}
	if err != nil || len(goes) == 0 {
		return cli.DatabaseError(err)
	}
	return cli.Confirm(cmd, "down undoes\n  "+strings.Join(goes, "\n  ")+"\nGo on?")
}

// warnOfStrangers returns a warning for each schema in which other roles may create
// objects.
func warnOfStrangers(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	all, err := strangers.Find(ctx, db, 0)
	if err != nil {
		return nil, cli.DatabaseError(err)
	}
	warnings := []string{}
	for _, e := range all {
		warnings = append(warnings, e.String())
	}
	return warnings, nil
}

func newMigratePrint(out *cli.Output) *cobra.Command {
	var down bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Write the migrations as plain SQL",
		Long: `Write all migrations as plain SQL, for psql and other migration tools. It uses
no database and keeps no record: the tool that runs the SQL does. The SQL has no
BEGIN and no COMMIT.`,
		Example: `  pglimit migrate print | psql -1 -v ON_ERROR_STOP=1 "$DATABASE_URL"
  pglimit migrate print --down
  pglimit migrate print --functions`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var sql strings.Builder
			if err := migrationSet(cmd).Print(&sql, down); err != nil {
				return err
			}
			direction := "up"
			if down {
				direction = "down"
			}
			return out.Print(cmd, struct {
				Direction string `json:"direction"`
				SQL       string `json:"sql"`
			}{direction, sql.String()}, sql.String())
		},
	}
	cmd.Flags().BoolVar(&down, "down", false, "write the SQL that undoes the migrations")
	return cmd
}

func newMigrateExport(out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "export DIR",
		Short: "Copy the migrations into your goose folder",
		Long: `Copy the migrations into DIR, the folder of your goose migrations. They get the
next numbers there, as NNNNN_pglimit_<name>.sql; if DIR uses timestamps, they
get timestamps. They then run with your migrations, in the same record.

Migrations that DIR already has are left out. Run export again after each update
of pglimit. It overwrites no file and uses no database.`,
		Example: `  pglimit migrate export db/migrations
  pglimit migrate export --functions db/migrations`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, err := migrationSet(cmd).Export(args[0])
			text := "nothing to do: all are there\n"
			if len(files) > 0 {
				text = strings.Join(files, "\n") + "\n"
			} else if err != nil {
				return err
			}
			return errors.Join(err, out.Print(cmd, struct {
				Files []string `json:"files"`
			}{append([]string{}, files...)}, text))
		},
	}
}

const migrateGrantsHelp = `Write the SQL that gives roles exactly the rights they need. With --apply, run
it in one transaction and check the result. It can be run again; do so after
each update of pglimit.

An asker is a role that requests and does nothing else. It may execute the
functions of schema pglimit_ask: allow, allow_up_to, check, charge, reserve,
reserve_up_to, settle and cancel, under policies that an operator declares. It
cannot read the tables, refund, reset, block, or choose a limit or a clock.
grants takes its direct rights on the tables away, and limits its connections
if they have no limit. It refuses a role that has more as owner, by an attribute, through PUBLIC
or through another role. Create the SQL functions first, with up --functions.

An operator is a role that runs the library, the command, the janitor and all
SQL functions. It may read and write all rows and declare policies. It cannot
migrate. A ROLE without a flag is an operator.

--apply needs the owner of the tables and functions, or a superuser.`

func newMigrateGrants(db *connect.Database, out *cli.Output) *cobra.Command {
	var roles grants.Roles
	var apply bool
	cmd := &cobra.Command{
		Use:   "grants [ROLE]...",
		Short: "Write or run the SQL that gives roles their rights",
		Long:  migrateGrantsHelp,
		Example: `  pglimit migrate grants worker --apply
  pglimit migrate grants --asker web
  pglimit migrate grants --asker web --operator worker --operator oncall --apply
  pglimit migrate grants --operator worker | psql -1 -v ON_ERROR_STOP=1 "$DATABASE_URL"`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			roles.Operators = append(roles.Operators, args...)
			if cmd.Flags().Changed("functions") {
				return errors.New("--functions does not go with grants, which covers the tables and the functions: leave it out")
			}
			if len(roles.Askers)+len(roles.Operators) == 0 {
				return errors.New("no role is named: pass one, such as worker, or --asker web")
			}
			pool, err := db.OpenUnmigrated(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			do := grants.PlanFor
			if apply {
				do = grants.Apply
			}
			plan, err := do(cmd.Context(), pool, roles)
			if errors.Is(err, grants.ErrRole) {
				return err
			}
			if err != nil {
				return cli.DatabaseError(err)
			}
			var text strings.Builder
			for _, s := range plan.Statements {
				fmt.Fprintf(&text, "%s;\n", s)
			}
			if !out.JSON {
				for _, w := range plan.Warnings {
					fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
				}
			}
			return out.Print(cmd, struct {
				Applied    bool     `json:"applied"`
				Statements []string `json:"statements"`
				Warnings   []string `json:"warnings"`
			}{apply, append([]string{}, plan.Statements...), append([]string{}, plan.Warnings...)}, text.String())
		},
	}
	cmd.Flags().StringArrayVar(&roles.Askers, "asker", nil, "`role` that may only request; repeatable")
	cmd.Flags().StringArrayVar(&roles.Operators, "operator", nil, "`role` that may do everything but migrate; repeatable")
	cmd.Flags().BoolVar(&apply, "apply", false, "run the statements instead of only writing them")
	return cmd
}
