package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// ErrExposed is returned by [UpFunctions] if other roles may create objects in a schema
// that the functions would use. Nothing was changed. The message lists each such schema
// and the next step.
var ErrExposed = errors.New("pglimit: the SQL functions are not created because other roles may create objects")

// Exposure is a schema of the search_path in which other roles may create objects. An
// object named like a table, operator or function of a statement could replace it and
// run with the caller's rights.
type Exposure struct {
	// Schema is the schema's name, quoted if SQL needs it.
	Schema string
	// Owner is the schema's owner if that is another role, or else empty.
	Owner string
	// Creators are the names of the other roles with the right to create objects;
	// PUBLIC stands for all roles.
	Creators []string
}

// String returns a line that describes the exposure and the next step.
func (e Exposure) String() string {
	own := "or use a separate schema: run CREATE SCHEMA limits and end the connection string in ?search_path=limits"
	if e.Schema == "pglimit" || e.Schema == "pglimit_ask" { // the functions' schemas, with any search_path
		own = "or run ALTER SCHEMA " + e.Schema + " OWNER TO CURRENT_USER and check its objects"
	}
	if e.Owner != "" {
		return fmt.Sprintf("schema %[1]s belongs to role %[2]s: migrate as %[2]s, %[3]s", e.Schema, e.Owner, own)
	}
	roles := strings.Join(e.Creators, ", ")
	return fmt.Sprintf("%[1]s may create objects in schema %[2]s: run REVOKE CREATE ON SCHEMA %[2]s FROM %[1]s, %[3]s", roles, e.Schema, own)
}

// Strangers returns the schemas of the search_path, and schemas pglimit and pglimit_ask,
// in which other roles may create objects, in the search_path's order: none if there is
// no such schema. It only reads.
//
// Superusers, the connection's role, its members and the groups that it is a member of
// do not count as other roles. In databases created by PostgreSQL 14 or earlier, PUBLIC
// may create objects in schema public.
func Strangers(ctx context.Context, pool *pgxpool.Pool) ([]Exposure, error) {
	db := stdlib.OpenDBFromPool(pool)
	all, err := strangers(ctx, db)
	return all, errors.Join(err, db.Close())
}

// exposures returns a row for each other role that owns a schema or may create objects in
// it. Other roles may already have defined operators and functions, so all types match
// pg_catalog's exactly.
const exposures = `
WITH RECURSIVE groups (role) AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user
    UNION SELECT m.roleid FROM pg_catalog.pg_auth_members AS m JOIN groups AS g ON g.role = m.member
), members (role) AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user
    UNION SELECT m.member FROM pg_catalog.pg_auth_members AS m JOIN members AS g ON g.role = m.roleid
), known (role) AS (
    SELECT g.role FROM groups AS g
    UNION SELECT m.role FROM members AS m
    UNION SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolsuper
), ours (role) AS (
    SELECT k.role FROM known AS k
    UNION SELECT r.oid FROM pg_catalog.pg_roles AS r
    JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database() AND d.datdba IN (SELECT k.role FROM known AS k)
    WHERE r.rolname = 'pg_database_owner'
), used (place, name) AS (
    SELECT s.place, s.name FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY AS s (name, place)
    UNION ALL SELECT o.place, o.name
    FROM (VALUES (9223372036854775806, 'pglimit'::name), (9223372036854775807, 'pglimit_ask'::name)) AS o (place, name)
    WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s (name) WHERE s.name = o.name)
)
SELECT pg_catalog.quote_ident(n.nspname::text),
       CASE WHEN n.nspowner IN (SELECT o.role FROM ours AS o) THEN '' ELSE pg_catalog.quote_ident(owner.rolname::text) END,
       CASE WHEN a.grantee IS NULL THEN '' WHEN a.grantee = 0::oid THEN 'PUBLIC' ELSE pg_catalog.quote_ident(creator.rolname::text) END
FROM used AS u
JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.name
JOIN pg_catalog.pg_roles AS owner ON owner.oid = n.nspowner
LEFT JOIN LATERAL (
    SELECT e.grantee FROM pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n'::"char", n.nspowner))) AS e
    WHERE e.privilege_type = 'CREATE' AND e.grantee <> n.nspowner AND NOT e.grantee IN (SELECT o.role FROM ours AS o)
) AS a ON true
LEFT JOIN pg_catalog.pg_roles AS creator ON creator.oid = a.grantee
WHERE a.grantee IS NOT NULL OR NOT n.nspowner IN (SELECT o.role FROM ours AS o)
ORDER BY u.place, a.grantee`

func strangers(ctx context.Context, db *sql.DB) (all []Exposure, err error) {
	rows, err := db.QueryContext(ctx, exposures)
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the rights on the schemas of the search_path: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var schema, owner, creator string
		if err := rows.Scan(&schema, &owner, &creator); err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].Schema != schema {
			all = append(all, Exposure{Schema: schema, Owner: owner})
		}
		if last := &all[len(all)-1]; creator != "" {
			last.Creators = append(last.Creators, creator)
		}
	}
	return all, rows.Err()
}
