package grants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/installed"
	"github.com/pglimit/pglimit/internal/migrate"
)

// checkAsking returns an error if the functions for askers are missing, or cannot work.
func (g *granting) checkAsking(ctx context.Context) error {
	if !g.Functions.There() || !g.Asking.There() {
		return errors.New("pglimit: the SQL functions that askers call are missing: run `pglimit migrate up --functions`")
	}
	for _, schema := range []string{"pglimit", "pglimit_ask"} {
		part := map[string]installed.API{"pglimit": g.Functions, "pglimit_ask": g.Asking}[schema]
		if missing := installed.Lacks(part.Functions, migrate.MadeFunctions(schema)); missing != "" {
			return fmt.Errorf("pglimit: function %s.%s is missing: run `pglimit migrate up --functions`", schema, missing)
		}
	}
	for _, f := range g.Asking.Public() {
		var definer, bound bool
		var owner string
		if err := g.Tx.QueryRow(ctx, `SELECT p.prosecdef, format('search_path=%s, pg_temp', $2::text) = ANY (coalesce(p.proconfig, '{}')), quote_ident(r.rolname::text)
			FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = $1::oid`, f.OID, g.Home.Name).Scan(&definer, &bound, &owner); err != nil {
			return fmt.Errorf("pglimit: read function %s: %w", f.Name, err)
		}
		if !bound {
			return fmt.Errorf("pglimit: function %s works on the tables of another schema than %s: end the connection string in ?search_path= and that schema", f.Name, g.Home.Name)
		}
		if !definer {
			return fmt.Errorf("pglimit: function %s is not SECURITY DEFINER: run `pglimit migrate down --to 0 --functions` and `pglimit migrate up --functions`", f.Name)
		}
		missing, err := g.missing(ctx, f.Owner, g.operatorsRights())
		if err != nil {
			return err
		}
		if missing != "" {
			return fmt.Errorf("pglimit: function %s runs with the rights of its owner %s, which lacks %s: make %[2]s an operator first", f.Name, owner, missing)
		}
	}
	return nil
}

// warnings are about what may be meant so.
func (g *granting) warnings(ctx context.Context) (all []string, err error) {
	var owner string
	err = g.Tx.QueryRow(ctx, `SELECT quote_ident(r.rolname::text) FROM pg_roles AS r WHERE r.oid = $1::oid AND r.rolsuper`, g.Asking.Functions[0].Owner).Scan(&owner)
	switch {
	case err == nil:
		all = append(all, fmt.Sprintf("the functions of schema pglimit_ask run with the rights of their owner %s, a superuser: migrate as a role that owns only the tables", owner))
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("pglimit: read the functions' owner: %w", err)
	}
	var readable, some bool
	policy := g.Tables[slices.IndexFunc(g.Tables, func(o installed.Object) bool { return o.Own == "pglimit_policy" })]
	if err := g.Tx.QueryRow(ctx, `SELECT has_table_privilege($1::oid, 'SELECT')`, policy.OID).Scan(&readable); err != nil {
		return nil, fmt.Errorf("pglimit: read the rights on %s: %w", policy.Name, err)
	}
	if readable {
		if err := g.Tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM `+policy.Name+` WHERE askers)`).Scan(&some); err != nil {
			return nil, fmt.Errorf("pglimit: read %s: %w", policy.Name, err)
		}
		if !some {
			all = append(all, "no policy has askers, so they are refused: UPDATE "+policy.Name+" SET askers = true WHERE name = ...")
		}
	}
	return all, nil
}

// reaches lists what a role, $1, has that an asker must not have: rights on the relations
// $2, functions $3 and schemas $4, CREATE on the database, attributes and predefined roles.
// It may have them directly, through PUBLIC or as a member of roles. Members count without
// INHERIT too, because they can SET ROLE. $5: direct rights on the relations count too.
const reaches = `
WITH RECURSIVE held (role, through) AS ( -- PUBLIC, the role, and the roles that a direct membership leads to
    SELECT 0::oid, 0::oid UNION SELECT $1::oid, 0::oid
    UNION SELECT m.roleid, CASE h.through WHEN 0::oid THEN m.roleid ELSE h.through END
    FROM held AS h JOIN pg_auth_members AS m ON m.member = h.role
), relations AS (
    SELECT c.oid::regclass AS name, c.relowner AS owner, c.relacl AS acl FROM pg_class AS c WHERE c.oid = ANY ($2::oid[])
    UNION ALL
    SELECT c.oid::regclass, c.relowner, a.attacl FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid WHERE c.oid = ANY ($2::oid[])
), places (name, owner, acl) AS (
    SELECT 'SCHEMA ' || n.oid::regnamespace, n.nspowner, n.nspacl FROM pg_namespace AS n WHERE n.oid = ANY ($4::oid[])
    UNION ALL SELECT 'DATABASE ' || quote_ident(d.datname), d.datdba, d.datacl FROM pg_database AS d WHERE d.datname = current_database()
), has (role, what, mend) AS (
    SELECT e.grantee, format('has %s on %s', e.privilege_type, r.name),
           CASE e.grantee WHEN 0::oid THEN format('run REVOKE ALL ON TABLE %s FROM PUBLIC', r.name)
                ELSE 'another role than the owner granted it: revoke it as that role or as a superuser' END
    FROM relations AS r, aclexplode(r.acl) AS e WHERE e.grantee <> r.owner AND (e.grantee <> $1::oid OR $5::bool)
    UNION ALL
    SELECT e.grantee, format('has CREATE on %s', p.name),
           format('run REVOKE CREATE ON %s FROM %s', p.name, CASE e.grantee WHEN 0::oid THEN 'PUBLIC' ELSE e.grantee::regrole::text END)
    FROM places AS p, aclexplode(p.acl) AS e WHERE e.privilege_type = 'CREATE' AND e.grantee <> p.owner
    UNION ALL
    SELECT o.owner, 'owns ' || o.name, 'use another role'
    FROM (SELECT r.owner, 'TABLE ' || r.name FROM relations AS r
          UNION ALL SELECT p.proowner, 'FUNCTION ' || p.oid::regproc FROM pg_proc AS p WHERE p.oid = ANY ($3::oid[])
          UNION ALL SELECT p.owner, p.name FROM places AS p) AS o (owner, name)
    UNION ALL
    SELECT r.oid, 'has ' || a.name, format('use another role, or run ALTER ROLE %s NO%s', r.oid::regrole, a.name)
    FROM pg_roles AS r CROSS JOIN LATERAL (VALUES ('SUPERUSER', r.rolsuper), ('CREATEROLE', r.rolcreaterole), ('REPLICATION', r.rolreplication)) AS a (name, has) WHERE a.has
    UNION ALL
    SELECT r.oid, 'is predefined by PostgreSQL', '' FROM pg_roles AS r WHERE starts_with(r.rolname::text, 'pg_')
)
SELECT CASE h.through
       WHEN 0::oid THEN CASE h.role WHEN 0::oid THEN 'PUBLIC ' ELSE 'it ' END || min(n.what || ': ' || n.mend)
       ELSE format('it is a member of role %1$s, %2$swhich %3$s: run REVOKE %1$s FROM %4$s', h.through::regrole,
                   CASE WHEN h.role <> h.through THEN format('a member of %s, ', h.role::regrole) END, max(n.what), $1::oid::regrole) END
FROM held AS h JOIN has AS n ON n.role = h.role
GROUP BY h.role, h.through, CASE h.through WHEN 0::oid THEN n.mend END
ORDER BY 1`

// checkReach returns ErrRole if an asker has rights that it must not have. Direct rights
// count only after the statements, which revoke them.
func (g *granting) checkReach(ctx context.Context, r role, after bool) error {
	schemas := installed.Distinct(slices.Concat([]installed.Object{g.Home}, g.Functions.Schema, g.Asking.Schema))
	functions := slices.Concat(g.Functions.Functions, g.Asking.Functions)
	rows, err := g.Tx.Query(ctx, reaches, r.oid, installed.OIDs(g.Relations()), installed.OIDs(functions), installed.OIDs(schemas), after)
	if err != nil {
		return fmt.Errorf("pglimit: read the rights of role %s: %w", r.quoted, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("pglimit: read the rights of role %s: %w", r.quoted, err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: role %s cannot be an asker: %s", ErrRole, r.quoted, strings.Join(found, "; "))
	}
	return nil
}

// verify checks the rights of all roles after the statements.
func (g *granting) verify(ctx context.Context) error {
	for _, r := range g.askers {
		if err := g.checkReach(ctx, r, true); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		roles  []role
		rights []right
	}{{g.askers, g.askersRights()}, {g.operators, g.operatorsRights()}} {
		for _, r := range list.roles {
			missing, err := g.missing(ctx, r.oid, list.rights)
			if err != nil {
				return err
			}
			if missing != "" {
				return fmt.Errorf("pglimit: role %s still lacks %s: connect as the owner of the tables and functions, or as a superuser", r.quoted, missing)
			}
		}
	}
	return nil
}

// missing returns the first of some rights that a role lacks; empty if it has all.
func (g *granting) missing(ctx context.Context, role uint32, rights []right) (string, error) {
	for _, r := range rights {
		all, err := g.lacking(ctx, role, r)
		if err != nil {
			return "", err
		}
		if len(all) > 0 {
			return all[0].privileges[0] + " on " + strings.ToLower(r.kind) + " " + all[0].objects[0].Name, nil
		}
	}
	return "", nil
}
