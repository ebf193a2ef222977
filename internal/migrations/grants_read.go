package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
)

// object is a schema, table, view or function.
type object struct {
	oid   uint32
	owner uint32
	own   string // its name without schema and quotes
	name  string // as SQL
	types string // of a function's arguments, as SQL
}

// signature returns the function as SQL.
func (o object) signature() string { return o.name + "(" + o.types + ")" }

// installed is what the migrations of the functions made in one schema.
type installed struct{ schema, functions []object }

func (i installed) there() bool { return len(i.schema) > 0 && len(i.functions) > 0 }

// public are the functions that programs call.
func (i installed) public() []object {
	return slices.DeleteFunc(slices.Clone(i.functions), func(o object) bool { return strings.HasPrefix(o.own, "_") })
}

// role is a role that gets rights.
type role struct {
	oid    uint32
	quoted string

	limit    string // the statement that limits its connections, empty if they are limited
	mayLimit bool   // whether the connection's role may run it
}

// granting is what is in the database, as rights are granted on it.
type granting struct {
	tx db.DBTX

	askers, operators []role

	home      []object // the schema of the tables
	tables    []object
	readable  []object // views, and the records of migrations
	helpers   []object // functions that statements call
	routing   []object // those of [Distribute]
	functions installed
	asking    installed
}

// relations are all relations.
func (g *granting) relations() []object {
	return slices.Concat(g.tables, g.readable)
}

// readGranting reads the catalogue. The transaction's search_path is pg_catalog's from
// then on, so that no other role's operators are used.
func readGranting(ctx context.Context, tx db.DBTX, roles Roles) (*granting, error) {
	g := &granting{tx: tx}
	home := object{}
	err := tx.QueryRow(ctx, `SELECT n.oid, n.nspowner, n.nspname::text, pg_catalog.quote_ident(n.nspname::text)
		FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.oid = pg_catalog.to_regclass('pglimit_token_bucket'::text)::oid`).Scan(&home.oid, &home.owner, &home.own, &home.name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errors.New("pglimit: no schema of the search_path has pglimit's tables: run `pglimit migrate up`, or end the connection string in ?search_path= and their schema")
	}
	if err != nil {
		return nil, fmt.Errorf("pglimit: look for the tables: %w", err)
	}
	g.home = []object{home}
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path'::text, 'pg_catalog, pg_temp'::text, true)`); err != nil {
		return nil, fmt.Errorf("pglimit: set the search_path: %w", err)
	}
	if err := errors.Join(g.readObjects(ctx), g.readRoles(ctx, roles)); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *granting) readObjects(ctx context.Context) (err error) {
	home := g.home[0]
	read := func(into *[]object, query string, of object, names []string) {
		if err == nil {
			*into, err = g.objects(ctx, query, of, names)
		}
	}
	records := []string{Tables.table, Functions.table}
	read(&g.tables, relationsOf, home, Tables.names("TABLE", ""))
	read(&g.readable, relationsOf, home, slices.Concat(Tables.names("VIEW", ""), records))
	read(&g.helpers, functionsOf, home, Tables.names("FUNCTION", ""))
	read(&g.routing, functionsOf, home, routingNames())
	for _, part := range []struct {
		into   *installed
		schema string
	}{{&g.functions, "pglimit"}, {&g.asking, "pglimit_ask"}} {
		read(&part.into.schema, schemasOf, object{}, []string{part.schema})
		if len(part.into.schema) > 0 {
			read(&part.into.functions, functionsOf, part.into.schema[0], Functions.names("FUNCTION", part.schema))
		}
	}
	if err != nil {
		return err
	}
	if missing := lacks(g.tables, Tables.names("TABLE", "")); missing != "" {
		return fmt.Errorf("pglimit: schema %s has no table %s: run `pglimit migrate up`", home.name, missing)
	}
	if missing := lacks(g.readable, Tables.names("VIEW", "")); missing != "" {
		return fmt.Errorf("pglimit: schema %s has no view %s: run `pglimit migrate up`", home.name, missing)
	}
	return nil
}

// The catalogue's objects of a schema by name. $1 is the schema, $2 the names.
const (
	schemasOf = `SELECT n.oid, n.nspowner, n.nspname::text, quote_ident(n.nspname::text), ''
		FROM pg_namespace AS n WHERE n.nspname::text = ANY ($2::text[]) AND $1::oid = 0::oid`
	relationsOf = `SELECT c.oid, c.relowner, c.relname::text, quote_ident(n.nspname::text) || '.' || quote_ident(c.relname::text), ''
		FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.relnamespace = $1::oid AND c.relname::text = ANY ($2::text[]) AND c.relkind IN ('r', 'p', 'v')`
	functionsOf = `SELECT p.oid, p.proowner, p.proname::text, quote_ident(n.nspname::text) || '.' || quote_ident(p.proname::text), oidvectortypes(p.proargtypes)
		FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
		WHERE p.pronamespace = $1::oid AND p.proname::text = ANY ($2::text[])`
)

// objects returns those of names that exist, in the order of names.
func (g *granting) objects(ctx context.Context, query string, of object, names []string) ([]object, error) {
	rows, err := g.tx.Query(ctx, query, of.oid, names)
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the catalogue: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o object, err error) {
		return o, row.Scan(&o.oid, &o.owner, &o.own, &o.name, &o.types)
	})
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the catalogue: %w", err)
	}
	slices.SortStableFunc(all, func(a, b object) int { return slices.Index(names, a.own) - slices.Index(names, b.own) })
	return all, nil
}

// lacks returns the first name that is not among the objects; empty if all are.
func lacks(all []object, names []string) string {
	for _, n := range names {
		if !slices.ContainsFunc(all, func(o object) bool { return o.own == n }) {
			return n
		}
	}
	return ""
}

// distinct drops repeated objects.
func distinct(all []object) []object {
	var once []object
	for _, o := range all {
		if !slices.Contains(once, o) {
			once = append(once, o)
		}
	}
	return once
}

// oids of objects.
func oids(all []object) []uint32 {
	ids := []uint32{}
	for _, o := range all {
		ids = append(ids, o.oid)
	}
	return ids
}

func (g *granting) readRoles(ctx context.Context, roles Roles) error {
	seen := map[string]string{}
	for _, list := range []struct {
		kind  string
		names []string
		into  *[]role
	}{{"asker", roles.Askers, &g.askers}, {"operator", roles.Operators, &g.operators}} {
		for _, name := range list.names {
			if before, ok := seen[name]; ok && before != list.kind {
				return fmt.Errorf("%w: role %q is an asker and an operator: choose one", ErrRole, name)
			} else if ok {
				continue
			}
			seen[name] = list.kind
			r, err := g.readRole(ctx, name, list.kind)
			if err != nil {
				return err
			}
			*list.into = append(*list.into, r)
		}
	}
	return nil
}

func (g *granting) readRole(ctx context.Context, name, kind string) (r role, err error) {
	if name == "" || strings.Contains(name, "\x00") {
		return r, fmt.Errorf("%w: the name of an %s is %q: pass the name of a role", ErrRole, kind, name)
	}
	// As texts: a cast to name would cut a long name off.
	err = g.tx.QueryRow(ctx, `SELECT r.oid, quote_ident(r.rolname::text),
			CASE r.rolconnlimit WHEN -1 THEN format('ALTER ROLE %I CONNECTION LIMIT %s', r.rolname, greatest(1, current_setting('max_connections')::int / 4)) ELSE '' END,
			i.rolsuper OR i.rolcreaterole AND (current_setting('server_version_num')::int < 160000 OR pg_has_role(i.oid, r.oid, 'MEMBER WITH ADMIN OPTION'))
		FROM pg_roles AS r, pg_roles AS i WHERE r.rolname::text = $1::text AND i.rolname = current_user`, name).Scan(&r.oid, &r.quoted, &r.limit, &r.mayLimit)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && strings.EqualFold(name, "public"):
		return r, fmt.Errorf("%w: PUBLIC is every role: name one role", ErrRole)
	case errors.Is(err, pgx.ErrNoRows):
		return r, fmt.Errorf("%w: there is no role %q: run CREATE ROLE first, or correct the name, which is case-sensitive here", ErrRole, name)
	case err != nil:
		return r, fmt.Errorf("pglimit: look for role %q: %w", name, err)
	}
	return r, nil
}
