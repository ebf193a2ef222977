// Package installed reads what of pglimit is in a database, for those who grant rights on it
// or distribute it.
package installed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/migrate"
)

// Object is a schema, table, view or function.
type Object struct {
	OID   uint32
	Owner uint32
	Own   string // its name without schema and quotes
	Name  string // as SQL
	Types string // of a function's arguments, as SQL
}

// Signature returns the function as SQL.
func (o Object) Signature() string { return o.Name + "(" + o.Types + ")" }

// API is one schema of the SQL functions: pglimit or pglimit_ask. Both lists are empty where
// the functions are not installed.
type API struct{ Schema, Functions []Object }

// There reports whether the schema and functions in it exist.
func (a API) There() bool { return len(a.Schema) > 0 && len(a.Functions) > 0 }

// Public are the functions that programs call.
func (a API) Public() []Object {
	return slices.DeleteFunc(slices.Clone(a.Functions), func(o Object) bool { return strings.HasPrefix(o.Own, "_") })
}

// ShardFunctions are the names of the functions through which statements reach one shard of a
// cluster: package cluster makes them.
var ShardFunctions = []string{"pglimit_shard", "pglimit_on_shard"}

// Objects are what is in the database. Tx is the transaction that read them.
type Objects struct {
	Tx db.DBTX

	Home           Object // the schema of the tables
	Tables         []Object
	Readable       []Object // views, and the records of migrations
	Helpers        []Object // functions that statements call
	ShardFunctions []Object
	Functions      API
	Asking         API
}

// Relations are all relations.
func (o *Objects) Relations() []Object { return slices.Concat(o.Tables, o.Readable) }

// Read reads the catalogue. The transaction's search_path is pg_catalog's from then on, so
// that no other role's operators are used. If a table or view is missing, Read returns what is
// there, and an error.
func Read(ctx context.Context, tx db.DBTX) (*Objects, error) {
	all := &Objects{Tx: tx}
	err := tx.QueryRow(ctx, `SELECT n.oid, n.nspowner, n.nspname::text, pg_catalog.quote_ident(n.nspname::text)
		FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.oid = pg_catalog.to_regclass('pglimit_token_bucket'::text)::oid`).Scan(&all.Home.OID, &all.Home.Owner, &all.Home.Own, &all.Home.Name)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errors.New("pglimit: no schema of the search_path has pglimit's tables: run `pglimit migrate up`, or end the connection string in ?search_path= and their schema")
	}
	if err != nil {
		return nil, fmt.Errorf("pglimit: look for the tables: %w", err)
	}
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path'::text, 'pg_catalog, pg_temp'::text, true)`); err != nil {
		return nil, fmt.Errorf("pglimit: set the search_path: %w", err)
	}
	return all, all.read(ctx)
}

func (o *Objects) read(ctx context.Context) (err error) {
	read := func(into *[]Object, query string, of Object, names []string) {
		if err == nil {
			*into, err = objects(ctx, o.Tx, query, of, names)
		}
	}
	tables, views := migrate.Made("TABLE"), migrate.Made("VIEW")
	read(&o.Tables, relationsOf, o.Home, tables)
	read(&o.Readable, relationsOf, o.Home, slices.Concat(views, migrate.VersionTables))
	read(&o.Helpers, functionsOf, o.Home, migrate.Made("FUNCTION"))
	read(&o.ShardFunctions, functionsOf, o.Home, ShardFunctions)
	for _, part := range []struct {
		into   *API
		schema string
	}{{&o.Functions, "pglimit"}, {&o.Asking, "pglimit_ask"}} {
		read(&part.into.Schema, schemasOf, Object{}, []string{part.schema})
		if len(part.into.Schema) > 0 {
			read(&part.into.Functions, functionsOf, part.into.Schema[0], migrate.MadeFunctions(part.schema))
		}
	}
	if err != nil {
		return err
	}
	if missing := Lacks(o.Tables, tables); missing != "" {
		return fmt.Errorf("pglimit: schema %s has no table %s: run `pglimit migrate up`", o.Home.Name, missing)
	}
	if missing := Lacks(o.Readable, views); missing != "" {
		return fmt.Errorf("pglimit: schema %s has no view %s: run `pglimit migrate up`", o.Home.Name, missing)
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
func objects(ctx context.Context, tx db.DBTX, query string, of Object, names []string) ([]Object, error) {
	rows, err := tx.Query(ctx, query, of.OID, names)
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the catalogue: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Object, err error) {
		return o, row.Scan(&o.OID, &o.Owner, &o.Own, &o.Name, &o.Types)
	})
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the catalogue: %w", err)
	}
	slices.SortStableFunc(all, func(a, b Object) int { return slices.Index(names, a.Own) - slices.Index(names, b.Own) })
	return all, nil
}

// Lacks returns the first name that is not among the objects; empty if all are.
func Lacks(all []Object, names []string) string {
	for _, n := range names {
		if !slices.ContainsFunc(all, func(o Object) bool { return o.Own == n }) {
			return n
		}
	}
	return ""
}

// Distinct drops repeated objects.
func Distinct(all []Object) []Object {
	var once []Object
	for _, o := range all {
		if !slices.Contains(once, o) {
			once = append(once, o)
		}
	}
	return once
}

// OIDs of objects.
func OIDs(all []Object) []uint32 {
	ids := []uint32{}
	for _, o := range all {
		ids = append(ids, o.OID)
	}
	return ids
}
