package migrate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/migrations"
)

func newGrants(db *connect.Database, out *cli.Output) *cobra.Command {
	var roles migrations.Roles
	var apply bool
	cmd := &cobra.Command{
		Use:   "grants [ROLE]...",
		Short: "Write or run the SQL that gives roles their rights",
		Long: `Write the SQL that gives roles exactly the rights they need. With --apply, run
it in one transaction and check the result. It can be run again; do so after
each update of pglimit.

An asker is a role that requests and does nothing else. It may execute the
functions of schema pglimit_ask: allow, allow_up_to, check, charge, reserve,
settle and cancel, under policies that an operator declares. It cannot read the
tables, refund, reset, block, or choose a limit or a clock. grants takes its
direct rights on the tables away, and refuses a role that has rights on them as
owner, as superuser, through PUBLIC or through another role. Create the SQL
functions first, with up --functions.

An operator is a role that runs the library, the command, the janitor and all
SQL functions. It may read and write all rows and declare policies. It cannot
migrate. A ROLE without a flag is an operator.

--apply needs the owner of the tables and functions, or a superuser.`,
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
			do := migrations.PlanGrants
			if apply {
				do = migrations.ApplyGrants
			}
			plan, err := do(cmd.Context(), pool, roles)
			if errors.Is(err, migrations.ErrRole) {
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
