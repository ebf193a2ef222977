package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// checkAsking returns an error if the functions for askers are missing, or cannot work.
func (g *granting) checkAsking(ctx context.Context) error {
	if !g.functions.there() || !g.asking.there() {
		return errors.New("pglimit: the SQL functions that askers call are missing: run `pglimit migrate up --functions`")
	}
	for _, schema := range []string{"pglimit", "pglimit_ask"} {
		part := map[string]installed{"pglimit": g.functions, "pglimit_ask": g.asking}[schema]
		if missing := lacks(part.functions, within(schema, Functions.names("FUNCTION"))); missing != "" {
			return fmt.Errorf("pglimit: function %s.%s is missing: run `pglimit migrate up --functions`", schema, missing)
		}
	}
	for _, f := range g.asking.public() {
		var definer, bound bool
		var owner string
		if err := g.tx.QueryRow(ctx, `SELECT p.prosecdef, format('search_path=%s, pg_temp', $2::text) = ANY (coalesce(p.proconfig, '{}')), quote_ident(r.rolname::text)
			FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner WHERE p.oid = $1::oid`, f.oid, g.home[0].name).Scan(&definer, &bound, &owner); err != nil {
			return fmt.Errorf("pglimit: read function %s: %w", f.name, err)
		}
		if !bound {
			return fmt.Errorf("pglimit: function %s works on the tables of another schema than %s: end the connection string in ?search_path= and that schema", f.name, g.home[0].name)
		}
		if !definer {
			return fmt.Errorf("pglimit: function %s is not SECURITY DEFINER: run `pglimit migrate down --to 0 --functions` and `pglimit migrate up --functions`", f.name)
		}
		missing, err := g.missing(ctx, f.owner, g.operatorsRights())
		if err != nil {
			return err
		}
		if missing != "" {
			return fmt.Errorf("pglimit: function %s runs with the rights of its owner %s, which lacks %s: make %[2]s an operator first", f.name, owner, missing)
		}
	}
	return nil
}

// warnings are about what may be meant so.
func (g *granting) warnings(ctx context.Context) (all []string, err error) {
	var owner string
	err = g.tx.QueryRow(ctx, `SELECT quote_ident(r.rolname::text) FROM pg_roles AS r WHERE r.oid = $1::oid AND r.rolsuper`, g.asking.functions[0].owner).Scan(&owner)
	switch {
	case err == nil:
		all = append(all, fmt.Sprintf("the functions of schema pglimit_ask run with the rights of their owner %s, a superuser: migrate as a role that owns only the tables", owner))
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("pglimit: read the functions' owner: %w", err)
	}
	var readable, some bool
	policy := g.tables[slices.IndexFunc(g.tables, func(o object) bool { return o.own == "pglimit_policy" })]
	if err := g.tx.QueryRow(ctx, `SELECT has_table_privilege($1::oid, 'SELECT')`, policy.oid).Scan(&readable); err != nil {
		return nil, fmt.Errorf("pglimit: read the rights on %s: %w", policy.name, err)
	}
	if readable {
		if err := g.tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM `+policy.name+` WHERE askers)`).Scan(&some); err != nil {
			return nil, fmt.Errorf("pglimit: read %s: %w", policy.name, err)
		}
		if !some {
			all = append(all, "no policy has askers, so they are refused: UPDATE "+policy.name+" SET askers = true WHERE name = ...")
		}
	}
	return all, nil
}

// reaches lists how a role, $1, has rights on the relations $2, may replace the functions
// $3, or may create objects in the schemas $4. $5: its own direct rights count too.
const reaches = `
WITH rights (privilege, object, grantee) AS (
    SELECT e.privilege_type, c.oid::regclass::text, e.grantee
    FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS e
    WHERE c.oid = ANY ($2::oid[]) AND e.grantee <> c.relowner
    UNION ALL
    SELECT e.privilege_type, c.oid::regclass::text, e.grantee
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid, aclexplode(a.attacl) AS e
    WHERE c.oid = ANY ($2::oid[]) AND e.grantee <> c.relowner
), owned (object, owner) AS (
    SELECT 'table ' || c.oid::regclass::text, c.relowner FROM pg_class AS c WHERE c.oid = ANY ($2::oid[])
    UNION ALL SELECT 'function ' || p.oid::regproc::text, p.proowner FROM pg_proc AS p WHERE p.oid = ANY ($3::oid[])
    UNION ALL SELECT 'schema ' || n.oid::regnamespace::text, n.nspowner FROM pg_namespace AS n WHERE n.oid = ANY ($4::oid[])
)
SELECT CASE WHEN r.grantee = 0::oid THEN format('PUBLIC has %s on %s: run REVOKE ALL ON TABLE %2$s FROM PUBLIC', min(r.privilege), min(r.object))
            WHEN r.grantee = $1::oid THEN format('it still has %s on %s, granted by a role other than the owner: revoke it as that role or as a superuser', min(r.privilege), min(r.object))
            ELSE format('it is a member of role %1$s, which has %2$s on %3$s: run REVOKE %1$s FROM %4$s', r.grantee::regrole, min(r.privilege), min(r.object), $1::oid::regrole) END
FROM rights AS r
WHERE CASE r.grantee WHEN 0::oid THEN true WHEN $1::oid THEN $5::bool ELSE pg_has_role($1::oid, r.grantee, 'MEMBER') END
GROUP BY r.grantee
UNION ALL
SELECT format('it owns %s, or is a member of its owner %s: use another role', min(o.object), o.owner::regrole)
FROM owned AS o WHERE pg_has_role($1::oid, o.owner, 'MEMBER') GROUP BY o.owner
UNION ALL
SELECT format('it may create objects in schema %1$s: run REVOKE CREATE ON SCHEMA %1$s FROM %2$s, or from the role that it has the right from', n.oid::regnamespace, $1::oid::regrole)
FROM pg_namespace AS n WHERE n.oid = ANY ($4::oid[]) AND has_schema_privilege($1::oid, n.oid, 'CREATE') AND NOT pg_has_role($1::oid, n.nspowner, 'MEMBER')
UNION ALL
SELECT format('it is a member of %1$s: run REVOKE %1$s FROM %2$s', r.oid::regrole, $1::oid::regrole)
FROM pg_roles AS r
WHERE r.rolname IN ('pg_read_all_data', 'pg_write_all_data', 'pg_maintain', 'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program')
  AND pg_has_role($1::oid, r.oid, 'MEMBER')
ORDER BY 1`

// checkReach returns ErrRole if an asker has rights that it must not have. Direct rights
// count only after the statements, which revoke them.
func (g *granting) checkReach(ctx context.Context, r role, after bool) error {
	schemas := distinct(append(append(append([]object(nil), g.home...), g.functions.schema...), g.asking.schema...))
	functions := append(append([]object(nil), g.functions.functions...), g.asking.functions...)
	rows, err := g.tx.Query(ctx, reaches, r.oid, oids(g.relations()), oids(functions), oids(schemas), after)
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
		for _, privilege := range r.privileges {
			var at int
			// kind is one of three words of this package.
			query := `SELECT o.place::int FROM unnest($1::oid[]) WITH ORDINALITY AS o (oid, place)
				WHERE NOT has_` + strings.ToLower(r.kind) + `_privilege($2::oid, o.oid, $3::text) ORDER BY 1 LIMIT 1`
			err := g.tx.QueryRow(ctx, query, oids(r.objects), role, privilege).Scan(&at)
			switch {
			case err == nil:
				return privilege + " on " + strings.ToLower(r.kind) + " " + r.objects[at-1].name, nil
			case !errors.Is(err, pgx.ErrNoRows):
				return "", fmt.Errorf("pglimit: read the rights on %s: %w", r.objects[0].name, err)
			}
		}
	}
	return "", nil
}
