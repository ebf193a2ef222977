package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/sqldb"
)

// MissingGrants returns the GRANT statements for those rights that the connection's role
// lacks and the library, the command and the janitor need: on the tables of the
// search_path, their schema and the functions that statements call. It returns none if the
// role has all. Run the statements as the owner of the tables. [PlanGrants] also covers the
// views and the SQL functions.
//
// MissingGrants only reads. It returns an error if no schema of the search_path has the
// tables, or if one of this release's tables is missing.
func MissingGrants(ctx context.Context, db *sql.DB) (statements []string, err error) {
	begun, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the connection's role: %w", err)
	}
	defer begun.Rollback()
	tx := sqldb.Tx(begun)
	var name string
	if err := tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&name); err != nil {
		return nil, fmt.Errorf("pglimit: read the connection's role: %w", err)
	}
	g, err := readGranting(ctx, tx, Roles{Operators: []string{name}})
	if err != nil {
		return nil, err
	}
	for _, r := range []right{
		{"SCHEMA", []string{"USAGE"}, g.home},
		{"TABLE", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}, g.tables},
		{"FUNCTION", []string{"EXECUTE"}, g.helpers},
	} {
		lacking, err := g.lacking(ctx, g.operators[0].oid, r)
		if err != nil {
			return nil, err
		}
		for _, l := range lacking {
			statements = append(statements, "GRANT "+l.String()+" TO "+g.operators[0].quoted)
		}
	}
	return statements, nil
}

// lacking returns which of the privileges of r a role lacks. Objects that lack the same
// are in one right.
func (g *granting) lacking(ctx context.Context, role uint32, r right) (all []right, err error) {
	lacks := make([][]string, len(r.objects))
	for _, privilege := range r.privileges {
		// kind is one of three words of this package.
		rows, err := g.tx.Query(ctx, `SELECT o.place::int FROM unnest($1::oid[]) WITH ORDINALITY AS o (oid, place)
			WHERE NOT has_`+strings.ToLower(r.kind)+`_privilege($2::oid, o.oid, $3::text)`, oids(r.objects), role, privilege)
		if err != nil {
			return nil, fmt.Errorf("pglimit: read the rights on the tables: %w", err)
		}
		places, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			return nil, fmt.Errorf("pglimit: read the rights on the tables: %w", err)
		}
		for _, p := range places {
			lacks[p-1] = append(lacks[p-1], privilege)
		}
	}
	for i, privileges := range lacks {
		if len(privileges) == 0 {
			continue
		}
		place := slices.IndexFunc(all, func(one right) bool { return slices.Equal(one.privileges, privileges) })
		if place < 0 {
			place = len(all)
			all = append(all, right{kind: r.kind, privileges: privileges})
		}
		all[place].objects = append(all[place].objects, r.objects[i])
	}
	return all, nil
}
