package migrations

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
)

// Presence reports which of the objects that a migration creates exist in a database.
type Presence struct {
	// Version is the migration's number, from 1, and Name the name of its file without
	// the number and .sql.
	Version int64
	Name    string
	// Present and Missing are the objects that exist and that do not, in the order of
	// the migration: tables, indexes, views and functions by name, and settings such as
	// "fillfactor of pglimit_gcra". Both are empty for a migration that only changes
	// objects of earlier ones.
	Present, Missing []string
}

// Complete reports whether the migration creates objects and all of them exist.
func (p Presence) Complete() bool { return len(p.Present) > 0 && len(p.Missing) == 0 }

// Present returns which objects of each migration exist, in order of the versions, however
// they were created: also by exported migrations in an application's goose folder, or by
// printed SQL, which the set does not record. It looks in the search_path, only
// reads, and takes no lock.
func (s *Set) Present(ctx context.Context, tx db.DBTX) ([]Presence, error) {
	objects := s.objects()
	var functions []bool
	var schemas, names, settings []string
	for _, o := range objects {
		functions, schemas, names, settings = append(functions, o.kind == "FUNCTION"), append(schemas, o.schema), append(names, o.name), append(settings, o.setting)
	}
	rows, err := tx.Query(ctx, presence, functions, schemas, names, settings)
	if err != nil {
		return nil, s.explain(err)
	}
	exists, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err != nil {
		return nil, s.explain(err)
	}
	var all []Presence
	for _, f := range s.list() {
		p := Presence{Version: f.version, Name: f.name}
		for i, o := range objects {
			switch {
			case o.version != f.version:
			case exists[i]:
				p.Present = append(p.Present, o.String())
			default:
				p.Missing = append(p.Missing, o.String())
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// presence returns a row for each object, in order: whether it exists. Other roles may have
// defined operators and functions, so all types match pg_catalog's exactly.
const presence = `
SELECT CASE WHEN o.function THEN EXISTS (
    SELECT 1 FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.proname = o.name::name
      AND (n.nspname = o.schema::name OR o.schema = ''::text AND pg_catalog.pg_function_is_visible(p.oid))
) ELSE EXISTS (
    SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relname = o.name::name
      AND (n.nspname = o.schema::name OR o.schema = ''::text AND pg_catalog.pg_table_is_visible(c.oid))
      AND (o.setting = ''::text OR EXISTS (
          SELECT 1 FROM pg_catalog.unnest(c.reloptions) AS r (option) WHERE pg_catalog.split_part(r.option, '='::text, 1) = o.setting))
) END
FROM ROWS FROM (pg_catalog.unnest($1::bool[]), pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::text[]))
    WITH ORDINALITY AS o (function, schema, name, setting, place)
ORDER BY o.place`

// madeObject is something that a migration creates.
type madeObject struct {
	version int64
	kind    string // TABLE, INDEX, VIEW or FUNCTION
	schema  string // empty: that of the search_path
	name    string
	setting string // of the table; empty: the object itself
}

// String returns the object's name, or that of the setting and its table.
func (o madeObject) String() string {
	name := o.name
	if o.schema != "" {
		name = o.schema + "." + name
	}
	if o.setting != "" {
		return o.setting + " of " + name
	}
	return name
}

var (
	creates = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE |UNIQUE )?(TABLE|INDEX|VIEW|FUNCTION) (?:IF NOT EXISTS )?([a-z0-9_.]+)`)
	sets    = regexp.MustCompile(`(?m)^ALTER TABLE ([a-z0-9_.]+) +SET \(([a-z0-9_]+)`)
	drops   = regexp.MustCompile(`(?m)^DROP (?:TABLE|INDEX|VIEW|FUNCTION) (?:IF EXISTS )?([a-z0-9_.]+)`)
)

// objects returns what the set's migrations create, from their SQL, whose statements begin
// at the start of a line. What a later one drops is left out.
func (s *Set) objects() (all []madeObject) {
	for _, f := range s.list() {
		text, err := files.ReadFile(f.path)
		if err != nil {
			panic(err) // it is embedded
		}
		_, up, _ := strings.Cut(string(text), "-- +goose Up")
		up, _, _ = strings.Cut(up, "-- +goose Down")
		for _, m := range drops.FindAllStringSubmatch(up, -1) {
			all = slices.DeleteFunc(all, func(o madeObject) bool { return o.setting == "" && o.String() == m[1] })
		}
		add := func(kind, name, setting string) {
			o := madeObject{version: f.version, kind: kind, name: name, setting: setting}
			if schema, rest, ok := strings.Cut(name, "."); ok {
				o.schema, o.name = schema, rest
			}
			if !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
		for _, m := range creates.FindAllStringSubmatch(up, -1) {
			add(m[1], m[2], "")
		}
		for _, m := range sets.FindAllStringSubmatch(up, -1) {
			add("TABLE", m[1], m[2])
		}
	}
	return all
}

// names returns the names of what the set's migrations create of one kind in a schema; empty
// is that of the search_path.
func (s *Set) names(kind, schema string) (all []string) {
	for _, o := range s.objects() {
		if o.kind == kind && o.schema == schema && o.setting == "" {
			all = append(all, o.name)
		}
	}
	return all
}
