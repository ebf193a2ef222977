package grants

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/installed"
	"github.com/pglimit/pglimit/internal/sqldb"
)

// Missing returns the GRANT statements for those rights that the connection's role
// lacks: missing are those that the library, the command and the janitor need on the tables
// of the search_path, their schema and the functions that statements call. reads are those
// that only the command needs, on the views and the records of migrations. [PlanFor] also
// covers the SQL functions.
//
// Missing only reads. It returns an error if no schema of the search_path has the
// tables, or if one of this release's tables is missing.
func Missing(ctx context.Context, db *sql.DB) (missing, reads []string, err error) {
	begun, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, nil, fmt.Errorf("pglimit: read the connection's role: %w", err)
	}
	defer begun.Rollback()
	tx := sqldb.Tx(begun)
	var name string
	if err := tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&name); err != nil {
		return nil, nil, fmt.Errorf("pglimit: read the connection's role: %w", err)
	}
	g, err := readGranting(ctx, tx, Roles{Operators: []string{name}})
	if err != nil {
		return nil, nil, err
	}
	for _, r := range []struct {
		right
		into *[]string
	}{
		{right{"SCHEMA", []string{"USAGE"}, []installed.Object{g.Home}}, &missing},
		{right{"TABLE", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}, g.Tables}, &missing},
		{right{"FUNCTION", []string{"EXECUTE"}, slices.Concat(g.Helpers, g.ShardFunctions)}, &missing},
		{right{"TABLE", []string{"SELECT"}, g.Readable}, &reads},
	} {
		lacking, err := g.lacking(ctx, g.operators[0].oid, r.right)
		if err != nil {
			return nil, nil, err
		}
		for _, l := range lacking {
			*r.into = append(*r.into, "GRANT "+l.String()+" TO "+g.operators[0].quoted)
		}
	}
	return missing, reads, nil
}

// lacking returns which of the privileges of r a role lacks. Objects that lack the same
// are in one right.
func (g *granting) lacking(ctx context.Context, role uint32, r right) (all []right, err error) {
	lacks := make([][]string, len(r.objects))
	for _, privilege := range r.privileges {
		// kind is one of three words of this package.
		rows, err := g.Tx.Query(ctx, `SELECT o.place::int FROM unnest($1::oid[]) WITH ORDINALITY AS o (oid, place)
			WHERE NOT has_`+strings.ToLower(r.kind)+`_privilege($2::oid, o.oid, $3::text)`, installed.OIDs(r.objects), role, privilege)
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
