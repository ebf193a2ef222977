// Package grants gives database roles the rights that they need of pglimit, and no others.
package grants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/internal/installed"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/strangers"
)

// Roles are the database roles that [PlanFor] and [Apply] give rights to. Names
// are as in pg_roles, without quotes. A role may be in one of the lists.
type Roles struct {
	// Askers may execute the functions of schema pglimit_ask, and nothing else of
	// pglimit: they request, reserve and settle under policies with askers. They cannot
	// read, refund, reset or block.
	Askers []string
	// Operators may do what the library, the command, the janitor and the SQL functions
	// need: read and write all rows, policies and overrides among them. They cannot
	// migrate.
	Operators []string
}

// Plan has the statements that give roles their rights.
type Plan struct {
	// Statements are SQL statements without a semicolon, in order. They can be run
	// again.
	Statements []string
	// Warnings say what the statements do not mend, with the next step.
	Warnings []string
}

// ErrRole is returned by [PlanFor] and [Apply] if a role cannot be given these
// rights: it does not exist, or would have others that an asker must not have. The
// message says why and names the next step. Nothing was changed.
var ErrRole = errors.New("pglimit: these rights cannot be granted")

// PlanFor returns the statements that give each role the rights of its list. An asker
// loses direct rights on the tables, so that a role with too many rights can become one.
// PlanFor only reads, and a connection that may read the catalogue suffices.
//
// The tables are those of the search_path. Askers need the SQL functions, see
// [Functions]. If other roles may create objects in the schemas that these functions
// use, PlanFor returns [ErrExposed]. It returns [ErrRole] if an asker has more than it
// may have and the statements cannot take it away: ownership, SUPERUSER, CREATEROLE,
// REPLICATION, CREATE on the database, or rights through PUBLIC or any role that it is a
// member of. All roles that PostgreSQL predefines count.
//
// An asker without a CONNECTION LIMIT gets one, a quarter of max_connections. If the
// connection's role may not set it, a warning has the statement.
//
// Run the statements again after each update of pglimit that adds a table or function.
func PlanFor(ctx context.Context, pool *pgxpool.Pool, roles Roles) (Plan, error) {
	return grants(ctx, pool, roles, false)
}

// Apply runs the statements of [PlanFor] in one transaction. It then checks that
// operators have all rights and askers have no others, and rolls back if not. The
// connection's role must own the tables and the functions, or be a superuser. While
// another process migrates, Apply waits as [Set.Up] does.
func Apply(ctx context.Context, pool *pgxpool.Pool, roles Roles) (Plan, error) {
	return grants(ctx, pool, roles, true)
}

func grants(ctx context.Context, pool *pgxpool.Pool, roles Roles, apply bool) (plan Plan, err error) {
	if len(roles.Askers) > 0 {
		db := stdlib.OpenDBFromPool(pool)
		if err := errors.Join(strangers.Refuse(ctx, db), db.Close()); err != nil {
			return plan, err
		}
	}
	options := pgx.TxOptions{AccessMode: pgx.ReadOnly}
	if apply {
		options.AccessMode = pgx.ReadWrite
	}
	err = migrate.Await(ctx, "pglimit", func() (held string, err error) {
		err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
			if apply { // two at once would fail, and a migration may change what is there
				if held, err = migrate.TryLock(ctx, tx); err != nil {
					return fmt.Errorf("pglimit: take the lock of migrations: %w", err)
				}
				if held != "" {
					return nil
				}
			}
			g, err := readGranting(ctx, tx, roles)
			if err != nil {
				return err
			}
			if plan, err = g.plan(ctx); err != nil || !apply {
				return err
			}
			for _, s := range plan.Statements {
				if _, err := tx.Exec(ctx, s); err != nil {
					return explainGrant(s, err)
				}
			}
			return g.verify(ctx)
		})
		return held, err
	})
	if err != nil {
		return Plan{}, err
	}
	return plan, nil
}

// explainGrant adds the next step to the error of a statement.
func explainGrant(statement string, err error) error {
	next := ""
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		next = map[string]string{
			"42501": ": connect as the owner of the tables and functions, or as a superuser",
			"42725": ": schema pglimit or pglimit_ask has a second function of that name: drop it first",
			"25006": ": this is a replica or a read-only session: connect to the primary",
		}[answer.Code]
	}
	return fmt.Errorf("pglimit: %s: %w%s", statement, err, next)
}

// right is some privileges on some objects, as one statement grants them.
type right struct {
	kind       string // TABLE, FUNCTION or SCHEMA
	privileges []string
	objects    []installed.Object
}

// String renders "SELECT, UPDATE ON TABLE a, b".
func (r right) String() string {
	var names []string
	for _, o := range r.objects {
		names = append(names, o.Name)
	}
	return strings.Join(r.privileges, ", ") + " ON " + r.kind + " " + strings.Join(names, ", ")
}

// plan renders the statements. It refuses askers with rights from elsewhere.
func (g *granting) plan(ctx context.Context) (plan Plan, err error) {
	if len(g.askers) > 0 {
		if err := g.checkAsking(ctx); err != nil {
			return plan, err
		}
	}
	for _, r := range g.askers {
		if err := g.checkReach(ctx, r, false); err != nil {
			return plan, err
		}
		for _, right := range g.notAskers() {
			plan.Statements = append(plan.Statements, "REVOKE "+right.String()+" FROM "+r.quoted)
		}
		for _, right := range g.askersRights() {
			plan.Statements = append(plan.Statements, "GRANT "+right.String()+" TO "+r.quoted)
		}
		switch {
		case r.limit != "" && r.mayLimit:
			plan.Statements = append(plan.Statements, r.limit)
		case r.limit != "":
			plan.Warnings = append(plan.Warnings, fmt.Sprintf("role %s may take all connections of the server: run %s as a superuser or a role that administers it", r.quoted, r.limit))
		}
	}
	for _, r := range g.operators {
		for _, right := range g.operatorsRights() {
			plan.Statements = append(plan.Statements, "GRANT "+right.String()+" TO "+r.quoted)
		}
	}
	if len(g.askers) > 0 {
		all, err := g.warnings(ctx)
		plan.Warnings = append(plan.Warnings, all...)
		return plan, err
	}
	return plan, nil
}

// askersRights are all that an asker needs.
func (g *granting) askersRights() []right {
	return []right{
		{"SCHEMA", []string{"USAGE"}, g.Asking.Schema},
		{"FUNCTION", []string{"EXECUTE"}, g.Asking.Public()},
	}
}

// notAskers are rights on what an asker must not touch directly.
func (g *granting) notAskers() []right {
	all := []right{{"TABLE", []string{"ALL"}, g.Relations()}}
	if g.Functions.There() && g.Functions.Schema[0].Name != g.Home.Name {
		all = append(all, right{"SCHEMA", []string{"ALL"}, g.Functions.Schema})
	}
	if len(g.ShardFunctions) > 0 {
		all = append(all, right{"FUNCTION", []string{"ALL"}, g.ShardFunctions})
	}
	return all
}

// operatorsRights are all that the library, the command, the janitor and the functions
// need.
func (g *granting) operatorsRights() []right {
	schemas := []installed.Object{g.Home}
	functions := slices.Concat(g.Helpers, g.ShardFunctions)
	tables := append([]installed.Object(nil), g.Tables...)
	if g.Functions.There() {
		schemas = append(schemas, g.Functions.Schema...)
		functions = append(functions, g.Functions.Functions...)
	}
	if g.Asking.There() {
		schemas = append(schemas, g.Asking.Schema...)
		functions = append(functions, g.Asking.Public()...)
	}
	return []right{
		{"SCHEMA", []string{"USAGE"}, installed.Distinct(schemas)},
		{"TABLE", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}, tables},
		{"TABLE", []string{"SELECT"}, g.Readable},
		{"FUNCTION", []string{"EXECUTE"}, functions},
	}
}
