package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Record is a version table of goose, and the versions in it. The versions are those of the
// files in an application's folder, pglimit's exported migrations among them.
type Record struct {
	// Table is the table's name, quoted if SQL needs it, and with its schema if that is
	// not in the search_path.
	Table string
	// Versions are those that are applied, in ascending order.
	Versions []RecordedVersion
}

// RecordedVersion is a version in a Record.
type RecordedVersion struct {
	Version int64
	// AppliedAt is when it ran. goose stores it without a time zone: it is wrong if the
	// session's TimeZone has changed since.
	AppliedAt time.Time
}

// ErrNoRecord is returned by [Records] if the named table does not exist, is not a version
// table of goose, or may not be read.
var ErrNoRecord = errors.New("pglimit: no such version table")

// Records returns the version tables of goose: the one named table, with or without a
// schema, or, if table is empty, all in the search_path that the role may read but those of
// pglimit. It only reads and takes no lock.
//
// It shows what an application's goose has run where pglimit's migrations are in the
// application's folder: see [Set.Export] and [Set.Present].
func Records(ctx context.Context, pool *pgxpool.Pool, table string) ([]Record, error) {
	rows, err := pool.Query(ctx, recordTables, table, VersionTables)
	if err != nil {
		return nil, unread(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, unread(err)
	}
	if table != "" && len(names) == 0 {
		return nil, fmt.Errorf("%w: %q: name a table of goose that this role may read", ErrNoRecord, table)
	}
	var all []Record
	for _, name := range names {
		rows, err := pool.Query(ctx, fmt.Sprintf(recordVersions, name))
		if err != nil {
			return nil, unread(err)
		}
		versions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RecordedVersion])
		if err != nil {
			return nil, unread(err)
		}
		all = append(all, Record{name, versions})
	}
	return all, nil
}

// recordTables returns the names of the tables with the columns of goose's version tables.
const recordTables = `
SELECT CASE WHEN pg_catalog.pg_table_is_visible(c.oid) THEN pg_catalog.quote_ident(c.relname::text)
            ELSE pg_catalog.format('%I.%I'::text, n.nspname, c.relname) END
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r'::"char"
  AND (c.relname = $1::text::name AND pg_catalog.pg_table_is_visible(c.oid)
       OR pg_catalog.format('%s.%s'::text, n.nspname, c.relname) = $1::text
       OR $1::text = ''::text AND pg_catalog.pg_table_is_visible(c.oid) AND NOT c.relname::text = ANY ($2::text[]))
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'::text) AND pg_catalog.has_table_privilege(c.oid, 'SELECT'::text)
  AND (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute AS a
       WHERE a.attrelid = c.oid AND NOT a.attisdropped
         AND (a.attname = 'id'::name AND a.atttypid IN ('pg_catalog.int4'::regtype::oid, 'pg_catalog.int8'::regtype::oid)
              OR a.attname = 'version_id'::name AND a.atttypid = 'pg_catalog.int8'::regtype::oid
              OR a.attname = 'is_applied'::name AND a.atttypid = 'pg_catalog.bool'::regtype::oid
              OR a.attname = 'tstamp'::name AND a.atttypid IN ('pg_catalog.timestamp'::regtype::oid, 'pg_catalog.timestamptz'::regtype::oid))) = 4::bigint
ORDER BY 1`

// recordVersions returns the versions whose last record, of several, says that they are
// applied. goose records version 0 first.
const recordVersions = `
SELECT v.version_id, v.tstamp::timestamptz
FROM (SELECT DISTINCT ON (r.version_id) r.version_id, r.tstamp, r.is_applied FROM %s AS r ORDER BY r.version_id, r.id DESC) AS v
WHERE v.is_applied AND v.version_id > 0::bigint
ORDER BY v.version_id`
