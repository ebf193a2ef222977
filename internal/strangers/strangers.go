// Package strangers finds other roles that may create objects where statements look for
// theirs.
package strangers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// ErrExposed is returned by Functions.Up if other roles may create objects in a schema
// that the functions would use. Nothing was changed. The message lists each such schema
// and the next step.
var ErrExposed = errors.New("pglimit: the SQL functions are not created because other roles may create objects")

// Exposure is a schema of the search_path in which other roles may create objects, or a
// missing one that they may create. An object named like a table, operator or function of a
// statement could replace it and run with the caller's rights.
type Exposure struct {
	// Schema is the schema's name, quoted if SQL needs it.
	Schema string
	// Owner is the schema's owner if that is another role, or else empty.
	Owner string
	// Creators are the names of the other roles with the right to create objects;
	// PUBLIC stands for all roles.
	Creators []string
	// Missing is the quoted name of the database if there is no such schema, and Creators
	// may create it in that database. By default a schema named as the role comes first.
	Missing string
}

// Fix returns the SQL that takes the right to create objects away. heir, as SQL, is the role
// that a schema of another role should belong to.
func (e Exposure) Fix(heir string) string {
	place := "SCHEMA " + e.Schema
	if e.Missing != "" {
		place = "DATABASE " + e.Missing
	}
	var all []string
	if len(e.Creators) > 0 {
		all = append(all, fmt.Sprintf("REVOKE CREATE ON %s FROM %s", place, strings.Join(e.Creators, ", ")))
	}
	if e.Owner != "" {
		all = append(all, fmt.Sprintf("ALTER SCHEMA %s OWNER TO %s", e.Schema, heir))
	}
	return strings.Join(all, "; ")
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
	if e.Missing != "" {
		return fmt.Sprintf("%s may create schema %s, which comes before others in the search_path: run %s, or name only schemas that exist: end the connection string in ?search_path=public", roles, e.Schema, e.Fix("CURRENT_USER"))
	}
	return fmt.Sprintf("%s may create objects in schema %s: run %s, %s", roles, e.Schema, e.Fix("CURRENT_USER"), own)
}

// Refuse returns [ErrExposed] if other roles may create objects in schemas that are there. The
// SQL functions name their schema, so a schema that is made later does not change them.
func Refuse(ctx context.Context, db querier) error {
	all, err := Find(ctx, db, 0)
	var each []string
	for _, e := range all {
		if e.Missing == "" {
			each = append(each, e.String())
		}
	}
	if err == nil && len(each) > 0 {
		err = fmt.Errorf("%w: %s", ErrExposed, strings.Join(each, "; "))
	}
	return err
}

// Query returns a row for each other role that owns a schema or may create objects in
// it. Other roles may already have defined operators and functions, so all types match
// pg_catalog's exactly.
const Query = `
WITH RECURSIVE groups (role) AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user OR r.oid = $1::int8::oid
    UNION SELECT m.roleid FROM pg_catalog.pg_auth_members AS m JOIN groups AS g ON g.role = m.member
), members (role) AS (
    SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user OR r.oid = $1::int8::oid
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
), named (place, name, there) AS (
    SELECT e.place, e.name, EXISTS (SELECT 1 FROM pg_catalog.pg_namespace AS n WHERE n.nspname = e.name::name)
    FROM (SELECT s.place, CASE WHEN s.name = '"$user"' THEN current_user::text WHEN pg_catalog.starts_with(s.name, '"') THEN pg_catalog.btrim(s.name, '"') ELSE pg_catalog.lower(s.name) END AS name
          FROM pg_catalog.regexp_split_to_table(pg_catalog.current_setting('search_path'), '\s*,\s*') WITH ORDINALITY AS s (name, place)) AS e
)
(SELECT pg_catalog.quote_ident(n.nspname::text),
       CASE WHEN n.nspowner IN (SELECT o.role FROM ours AS o) THEN '' ELSE pg_catalog.quote_ident(owner.rolname::text) END,
       CASE WHEN a.grantee IS NULL THEN '' WHEN a.grantee = 0::oid THEN 'PUBLIC' ELSE pg_catalog.quote_ident(creator.rolname::text) END,
       ''
FROM used AS u
JOIN pg_catalog.pg_namespace AS n ON n.nspname = u.name
JOIN pg_catalog.pg_roles AS owner ON owner.oid = n.nspowner
LEFT JOIN LATERAL (
    SELECT e.grantee FROM pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n'::"char", n.nspowner))) AS e
    WHERE e.privilege_type = 'CREATE' AND e.grantee <> n.nspowner AND NOT e.grantee IN (SELECT o.role FROM ours AS o)
) AS a ON true
LEFT JOIN pg_catalog.pg_roles AS creator ON creator.oid = a.grantee
WHERE a.grantee IS NOT NULL OR NOT n.nspowner IN (SELECT o.role FROM ours AS o)
ORDER BY u.place, a.grantee)
UNION ALL
SELECT pg_catalog.quote_ident(m.name), '', CASE WHEN a.grantee = 0::oid THEN 'PUBLIC' ELSE pg_catalog.quote_ident(creator.rolname::text) END,
       pg_catalog.quote_ident(d.datname::text)
FROM named AS m
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(d.datacl, pg_catalog.acldefault('d'::"char", d.datdba))) AS a
LEFT JOIN pg_catalog.pg_roles AS creator ON creator.oid = a.grantee
WHERE m.place < (SELECT max(o.place) FROM named AS o WHERE o.there) AND NOT m.there
  AND a.privilege_type = 'CREATE' AND a.grantee <> d.datdba AND NOT a.grantee IN (SELECT o.role FROM ours AS o)
  AND NOT a.grantee IN (SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.oid = pg_catalog.to_regclass('pglimit_token_bucket'))`

// Find returns the schemas of the search_path, and schemas pglimit and pglimit_ask,
// in which other roles may create objects, in the search_path's order: none if there is
// no such schema. Missing schemas that come before others in the search_path, and that
// other roles may create, follow. It only reads.
//
// trusted is the oid of one more role that does not count as another one, such as the owner of
// the tables while another role runs; 0: none. Whoever migrates must not trust that owner.
//
// Superusers, the connection's role, its members and the groups that it is a member of
// do not count as other roles. In databases created by PostgreSQL 14 or earlier, PUBLIC
// may create objects in schema public.
func Find(ctx context.Context, db querier, trusted uint32) (all []Exposure, err error) {
	rows, err := db.QueryContext(ctx, Query, int64(trusted))
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the rights on the schemas of the search_path: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var schema, owner, creator, missing string
		if err := rows.Scan(&schema, &owner, &creator, &missing); err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].Schema != schema {
			all = append(all, Exposure{Schema: schema, Owner: owner, Missing: missing})
		}
		if last := &all[len(all)-1]; creator != "" {
			last.Creators = append(last.Creators, creator)
		}
	}
	return all, rows.Err()
}
