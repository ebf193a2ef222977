package migrate

import (
	"cmp"
	"context"
	_ "embed"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// What the migrations make, as the catalogue of any PostgreSQL describes it; TestMade writes
// it. A line has a version, a kind, a name and parts. A part that begins with - is undone.
var (
	//go:embed made/tables.txt
	madeTables string
	//go:embed made/functions.txt
	madeFunctions string
)

// Part is an object in a schema, or a part of it.
type Part struct {
	// Kind is TABLE, VIEW, INDEX, TRIGGER, FUNCTION, TYPE, or OPTION: a setting of a table.
	Kind string
	// Name is the object's, with the schema for functions of schemas pglimit and pglimit_ask.
	Name string
	// Text is a column or constraint of a TABLE, as in ALTER TABLE ADD, or a definition or
	// its hash.
	Text string

	version int64 // of the migration that makes it
	since   int64 // of the migration that made the object
}

// label is the object's name for people.
func (p Part) label() string { return strings.Replace(p.Name, " ON ", " of ", 1) }

// String says that the object stands without the part.
func (p Part) String() string {
	switch p.Kind {
	case "TABLE":
		return p.Name + " without " + cmp.Or(constraint().FindString(p.Text), p.Text)
	case "TRIGGER":
		return "trigger " + p.label() + " off or changed"
	}
	return strings.ToLower(p.Kind) + " " + p.Name + " changed"
}

// of reports whether p and o are parts of one object, and is whether they are the same.
func (p Part) of(o Part) bool { return p.Kind == o.Kind && p.Name == o.Name }
func (p Part) is(o Part) bool { return p.of(o) && p.Text == o.Text }

// parts returns what migrations make, in order. What a later one undoes is left out.
func parts(made string) (all []Part) {
	since := map[string]int64{}
	for line := range strings.Lines(made) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		version, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || len(fields) < 4 {
			panic("pglimit: made: " + line) // it is embedded
		}
		for _, text := range fields[3:] {
			p := Part{Kind: fields[1], Name: fields[2], Text: strings.TrimPrefix(text, "-"), version: version}
			since[p.Kind+p.Name] = cmp.Or(since[p.Kind+p.Name], version)
			p.since = since[p.Kind+p.Name]
			if text != p.Text {
				all = slices.DeleteFunc(all, p.is)
			} else {
				all = append(all, p)
			}
		}
	}
	return all
}

// Made returns the names of what the migrations of the tables make of one kind.
func Made(kind string) []string { return names(madeTables, kind, "") }

// MadeFunctions returns the names of what those of the functions make in a schema.
func MadeFunctions(schema string) []string { return names(madeFunctions, "FUNCTION", schema+".") }

func names(made, kind, prefix string) (all []string) {
	for _, p := range parts(made) {
		if name, ok := strings.CutPrefix(p.Name, prefix); ok && p.Kind == kind && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// Tx is a transaction of pgx.
type Tx interface {
	Query(ctx context.Context, statement string, args ...any) (pgx.Rows, error)
}

// Standing returns what stands in the schema of the tables and in those of the functions,
// whatever created it, in the order of creation. It takes no lock that a decision could wait
// for.
func Standing(ctx context.Context, tx Tx) ([]Part, error) {
	return standing(func(statement string, args ...any) (rows, error) { return tx.Query(ctx, statement, args...) }, besideTables)
}

// rows are those of pgx or of database/sql.
type rows interface {
	Next() bool
	Scan(into ...any) error
	Err() error
}

// standing is Standing for a schema, as SQL. The catalogue names objects as the search_path
// has it, and no other role's operators may be used.
func standing(query func(statement string, args ...any) (rows, error), schema string) (all []Part, err error) {
	read := func(each func(), into []any, statement string, args ...any) {
		if err != nil {
			return
		}
		var found rows
		for found, err = query(statement, args...); err == nil && found.Next(); each() {
			err = found.Scan(into...)
		}
		if err == nil {
			err = found.Err()
		}
	}
	const set = `SELECT pg_catalog.set_config('search_path'::text, $1::text, true)`
	var home, path, now string
	var p Part
	read(func() {}, []any{&home, &path}, `SELECT coalesce(`+schema+`, ''::name)::text, pg_catalog.current_setting('search_path'::text)`)
	read(func() {}, []any{&now}, set, "pg_catalog, pg_temp")
	read(func() { all = append(all, p) }, []any{&p.Kind, &p.Name, &p.Text}, standingIn, home)
	read(func() {}, []any{&now}, set, path)
	return all, err
}

// standingIn describes what is in schema $1, in the same words on all versions of PostgreSQL:
// some put a table's alias before the columns in a view, and some do not. The functions may be
// bound to the tables of another schema, all to the same.
const standingIn = `
WITH home AS (
    SELECT n.oid, n.nspname, quote_ident(n.nspname) || '.' AS dotted FROM pg_namespace AS n WHERE n.nspname::text = $1::text
), relation AS (
    SELECT c.oid, c.relname, c.relkind, c.reloptions, h.dotted FROM pg_class AS c JOIN home AS h ON h.oid = c.relnamespace
    WHERE c.relname LIKE 'pglimit\_%' AND c.relname NOT LIKE '%goose_db_version' AND c.relkind IN ('r', 'p', 'v')
), bound AS (
    SELECT c FROM pg_proc AS p, unnest(p.proconfig) AS c WHERE p.oid = to_regproc('pglimit.token_bucket') AND c LIKE 'search_path=%'
), named AS (
    SELECT n.oid, n.nspname || '.' AS dotted FROM pg_namespace AS n WHERE n.nspname IN ('pglimit', 'pglimit_ask')
    UNION ALL SELECT h.oid, '' FROM home AS h
)
SELECT m.kind, m.name, regexp_replace(m.text, '\s+', ' ', 'g') FROM (
    SELECT 'TABLE', r.name, concat(quote_ident(a.attname), ' ', regexp_replace(format_type(a.atttypid, a.atttypmod), '^("([^"]|"")+"|\w+)\.', ''), -- of a type of pglimit without its schema
        CASE WHEN a.attcollation <> t.typcollation THEN ' COLLATE ' || quote_ident(l.collname) END, CASE WHEN a.attnotnull THEN ' NOT NULL' END,
        CASE WHEN a.attidentity <> '' THEN ' GENERATED ALWAYS AS IDENTITY' END, ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)), r.oid, a.attnum
    FROM (SELECT oid, relname::text AS name FROM relation WHERE relkind <> 'v') AS r
    JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT 'TABLE', r.relname, format('CONSTRAINT %I %s', o.conname, pg_get_constraintdef(o.oid)), r.oid, 10000
    FROM relation AS r JOIN pg_constraint AS o ON o.conrelid = r.oid AND o.contype IN ('c', 'p')
    UNION ALL
    SELECT 'OPTION', 'fillfactor of ' || r.relname, 'set', r.oid, 10001 FROM relation AS r WHERE array_to_string(r.reloptions, ' ') LIKE '%fillfactor=%'
    UNION ALL
    SELECT 'VIEW', r.relname, md5(regexp_replace(replace(pg_get_viewdef(r.oid), r.dotted, ''), '\m[a-z]\.|\s', '', 'g')), r.oid, 0 FROM relation AS r WHERE r.relkind = 'v'
    UNION ALL
    SELECT 'INDEX', c.relname, replace(pg_get_indexdef(i.indexrelid), r.dotted, '') || CASE WHEN i.indisvalid THEN '' ELSE ' INVALID' END, i.indexrelid, 0
    FROM relation AS r JOIN pg_index AS i ON i.indrelid = r.oid JOIN pg_class AS c ON c.oid = i.indexrelid WHERE NOT EXISTS (SELECT FROM pg_constraint AS o WHERE o.conindid = i.indexrelid)
    UNION ALL
    SELECT 'TRIGGER', g.tgname || ' ON ' || r.relname, replace(pg_get_triggerdef(g.oid), r.dotted, '') || CASE WHEN g.tgenabled IN ('O', 'A') THEN '' ELSE ' DISABLED' END, g.oid, 0
    FROM relation AS r JOIN pg_trigger AS g ON g.tgrelid = r.oid AND NOT g.tgisinternal
    UNION ALL
    SELECT 'FUNCTION', n.dotted || p.proname, md5(concat_ws(' ', replace(concat_ws(' ', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)), (SELECT h.dotted FROM home AS h), ''), g.lanname, p.provolatile, p.proparallel, p.proisstrict, p.prosecdef, p.prosrc, (
        SELECT string_agg(CASE WHEN c IN (SELECT b.c FROM bound AS b) THEN 'bound' ELSE c END, ' ' ORDER BY c) FROM unnest(p.proconfig) AS c))), p.oid, 0
    FROM named AS n JOIN pg_proc AS p ON p.pronamespace = n.oid JOIN pg_language AS g ON g.oid = p.prolang WHERE n.dotted <> '' OR p.proname LIKE 'pglimit\_%'
    UNION ALL
    SELECT 'TYPE', n.dotted || c.relname, md5((SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0)), c.oid, 0
    FROM named AS n JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'c' AND (n.dotted <> '' OR c.relname LIKE 'pglimit\_%')
) AS m (kind, name, text, oid, place) ORDER BY m.oid, m.place, m.text COLLATE "C"`
