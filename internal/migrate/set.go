package migrate

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/pglimit/pglimit/internal/printable"
)

// Set is a sequence of migrations with a separate record: [Tables] or [Functions]. Its methods
// are safe for concurrent use.
type Set struct {
	files fs.FS             // NNNNN_<name>.sql
	made  string            // what they make: see parts
	table string            // the record of the migrations that have run
	next  map[string]string // next step for errors, by SQLSTATE

	// functions: Up makes them as a whole, and returns strangers.ErrExposed if other roles may
	// create objects.
	functions bool
}

// VersionTables are the records of [Tables] and [Functions].
var VersionTables = []string{tableOfTables, tableOfFunctions}

const (
	tableOfTables    = "pglimit_goose_db_version"
	tableOfFunctions = "pglimit_functions_goose_db_version"
)

// Tables returns the set of the tables and views that every limiter needs, of those files.
func Tables(files fs.FS) *Set {
	return &Set{
		files: files, made: madeTables, table: tableOfTables,
		next: map[string]string{
			"42501": "the role lacks the right to do this: migrate as the owner of the schema, or GRANT CREATE ON SCHEMA to the role",
		},
	}
}

// Functions returns the set of the SQL functions of schemas pglimit and pglimit_ask. A release
// that changes a function brings two migrations. The first creates all functions again; undoing
// it removes all of them. Undoing the second stops new calls, so that the first is undone while
// no call is running.
//
// They may be undone under traffic. New calls fail at once, with SQLSTATE 42883 or 3F000:
// the function or its schema does not exist. The functions are dropped when the
// transactions that were running in the database have ended. If one takes longer than about
// ten seconds, Down returns an error that names its process. The functions then still exist
// under other names: call Down again, or Up to bring them back with the rights on them.
func Functions(files fs.FS) *Set {
	return &Set{
		files: files, made: madeFunctions, table: tableOfFunctions, functions: true,
		next: map[string]string{
			"42501": "the role lacks the right to do this: migrate as the owner of the database and of schema pglimit, or GRANT CREATE ON DATABASE to the role",
			"42P01": "create the tables first: run `pglimit migrate up` or call migrations.Up",
			"42723": "a database has one set of functions: undo them there first, with `pglimit migrate down --to 0 --functions`",
		},
	}
}

// FS returns the set's migrations in goose's format, for an application's goose provider.
func (s *Set) FS() fs.FS { return s.files }

// VersionTable returns the name of the table that records which migrations have run.
func (s *Set) VersionTable() string { return s.table }

// Up runs all migrations that have not run yet: see package migrations of the public API.
func (s *Set) Up(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := s.UpTo(ctx, pool, Latest)
	return err
}

// UpSQL is Up for database/sql.
func (s *Set) UpSQL(ctx context.Context, db *sql.DB) error {
	if _, err := s.prepare(ctx, db, Latest); err != nil {
		return err
	}
	p, err := s.provider(db)
	if err != nil {
		return unread(err)
	}
	if _, err := p.Up(ctx); err != nil { // p is not closed: that would close db
		return s.explain(err)
	}
	return nil
}

// UpTo runs migrations as Up does, up to and including version to; [Latest] runs all. It
// returns the migrations that it ran, in order: none if none was pending. On an error, it
// returns the migrations that ran before, and they stay.
func (s *Set) UpTo(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	if to != Latest && !slices.Contains(s.versions(), to) {
		return nil, fmt.Errorf("%w: to is %d: take one of %v", ErrNoSuchVersion, to, s.versions())
	}
	db := stdlib.OpenDBFromPool(pool)
	mended, err := s.prepare(ctx, db, to)
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	steps, err := s.run(pool, func(p *goose.Provider) ([]*goose.MigrationResult, error) { return p.UpTo(ctx, to) })
	return append(mended, steps...), err
}

// Down undoes migrations, the last first, until version to is the last one applied. 0
// undoes all, and deletes all limits' data if the set is Tables; [Previous] undoes one. Down
// returns the migrations that it undid, in order: none if there was nothing to undo. Locks
// and errors are as with UpTo.
//
// Down may run under traffic. Afterwards limiters return limiter.ErrNotMigrated. No other
// statement waits for Down longer than a fraction of deadlock_timeout, or fails with a
// deadlock because of it. If other transactions leave no gap for about ten seconds, Down
// returns an error with the next step, and the current migration stays applied. It returns
// [ErrDistributed] for tables that a Citus cluster has.
func (s *Set) Down(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	if err := s.refuseDown(ctx, pool, to); err != nil {
		return nil, err
	}
	return s.run(pool, func(p *goose.Provider) ([]*goose.MigrationResult, error) {
		if to != Previous {
			return p.DownTo(ctx, to)
		}
		one, err := p.Down(ctx)
		if err != nil {
			if errors.Is(err, goose.ErrNoNextVersion) {
				err = nil // nothing to undo
			}
			return nil, err
		}
		return []*goose.MigrationResult{one}, nil
	})
}

// refuseDown returns an error if there is no version to, or the tables are distributed: Citus
// refuses some of the statements that undo migrations.
func (s *Set) refuseDown(ctx context.Context, pool *pgxpool.Pool, to int64) error {
	if to != Previous && to != 0 && !slices.Contains(s.versions(), to) {
		return fmt.Errorf("%w: to is %d: take 0 or one of %v", ErrNoSuchVersion, to, s.versions())
	}
	if s.functions {
		return nil
	}
	var citus bool
	err := pool.QueryRow(ctx, `SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_shard'::text) IS NOT NULL`).Scan(&citus)
	if err != nil || !citus {
		return s.explain(err)
	}
	var shards int64
	err = pool.QueryRow(ctx, `SELECT pg_catalog.count(*) FROM pg_catalog.pg_dist_shard AS s
		JOIN pg_catalog.pg_dist_partition AS p ON p.logicalrelid::oid = s.logicalrelid::oid AND p.partmethod = 'h'::"char"
		WHERE s.logicalrelid::oid = pg_catalog.to_regclass('pglimit_token_bucket'::text)::oid`).Scan(&shards)
	if err == nil && shards > 0 {
		return fmt.Errorf("%w, in %d shards: run `pglimit migrate distribute --undo` before `pglimit migrate down`", ErrDistributed, shards)
	}
	return s.explain(err)
}

// Goes returns a line for each migration that Down would undo, the last first, with the tables
// that go and their rows. Errors are Down's.
func (s *Set) Goes(ctx context.Context, pool *pgxpool.Pool, to int64) (all []string, err error) {
	if err := s.refuseDown(ctx, pool, to); err != nil {
		return nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	applied, _, err := s.appliedAt(ctx, db, first)
	if err != nil {
		return nil, s.explain(err)
	}
	for _, f := range slices.Backward(s.list()) {
		if _, ok := applied[f.version]; !ok || f.version <= to || to == Previous && len(all) > 0 {
			continue
		}
		var tables []string
		for _, m := range heads().FindAllStringSubmatch(s.plain(f, false), -1) {
			if m[1]+m[2] != "CREATETABLE" {
				continue
			}
			var rows int64
			if err := db.QueryRowContext(ctx, `SELECT count(*) FROM `+m[3]).Scan(&rows); err != nil && sqlState(err) != "42P01" {
				return nil, s.explain(err)
			}
			tables = append(tables, fmt.Sprintf("%s (%s)", m[3], printable.Count(rows, "row")))
		}
		all = append(all, strings.TrimRight(fmt.Sprintf("%05d %s %s", f.version, f.name, strings.Join(tables, ", ")), " "))
	}
	return all, nil
}

// Status returns all migrations in order, and whether each has run, and then those on record
// of a later release. It only reads and takes no lock.
func (s *Set) Status(ctx context.Context, db *sql.DB) ([]Migration, error) {
	applied, _, err := s.appliedAt(ctx, db, besideTables)
	if err != nil {
		return nil, s.explain(err)
	}
	var all []Migration
	for _, f := range s.list() {
		at, ok := applied[f.version]
		all = append(all, Migration{Version: f.version, Name: f.name, Applied: ok, AppliedAt: at})
	}
	for _, v := range s.later(applied) {
		all = append(all, Migration{Version: v, Name: Later, Applied: true, AppliedAt: applied[v]})
	}
	return all, nil
}

// The schemas with the record of migrations, as SQL.
const (
	first = `current_schema()` // into which goose migrates
	// A role that only runs may have other schemas in front of that of the tables.
	besideTables = `coalesce((SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.oid = to_regclass('pglimit_token_bucket'::text)::oid), current_schema())`
)

// appliedAt returns when each migration ran, by version, and the name of the record, as SQL:
// empty if schema has none.
func (s *Set) appliedAt(ctx context.Context, db querier, schema string) (applied map[int64]time.Time, record string, err error) {
	var found sql.NullString
	err = db.QueryRowContext(ctx, `SELECT (SELECT quote_ident(t.schemaname::text) FROM pg_tables AS t WHERE t.schemaname = `+schema+` AND t.tablename = $1)`,
		s.table).Scan(&found)
	if err != nil || !found.Valid {
		return nil, "", err
	}
	record = found.String + "." + s.table
	rows, err := db.QueryContext(ctx, `SELECT version_id, tstamp::timestamptz FROM `+record+` WHERE is_applied`)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	applied = map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, "", err
		}
		applied[version] = at
	}
	return applied, record, rows.Err()
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// later returns the versions on record of migrations that this release does not know.
func (s *Set) later(applied map[int64]time.Time) (all []int64) {
	for v := range applied {
		if v > slices.Max(s.versions()) {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return all
}

// run calls do with a goose provider over pool, and returns the migrations run or undone.
func (s *Set) run(pool *pgxpool.Pool, do func(*goose.Provider) ([]*goose.MigrationResult, error)) ([]Step, error) {
	db := stdlib.OpenDBFromPool(pool)
	p, err := s.provider(db)
	if err != nil {
		return nil, unread(errors.Join(err, db.Close()))
	}
	results, err := do(p)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
	}
	err = errors.Join(err, p.Close()) // closes db, not pool
	var steps []Step
	for _, r := range results {
		steps = append(steps, Step{Version: r.Source.Version, Name: nameOf(r.Source.Path), Took: r.Duration})
	}
	if err != nil {
		return steps, s.explain(err)
	}
	return steps, nil
}

func (s *Set) provider(db *sql.DB) (*goose.Provider, error) {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID))
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, s.FS(),
		goose.WithTableName(s.table),
		goose.WithSessionLocker(sessionLock{locker}),
		goose.WithAllowOutofOrder(true),       // one that makes nothing may be off the record, and later ones on it again
		goose.WithDisableGlobalRegistry(true), // excludes an application's Go migrations
		goose.WithLogger(goose.NopLogger()))
}

// explain adds the next step to an error, if it is known.
func (s *Set) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, goose.ErrVersionNotFound):
		return fmt.Errorf("pglimit: %s names a migration that this release of pglimit does not know (last known: %d): use the release that ran it: %w",
			s.table, slices.Max(s.versions()), err)
	}
	next := map[string]string{
		"3F000": "no schema of the search_path exists: run CREATE SCHEMA first, or change search_path in the connection string",
		"42P07": s.elsewhere(),
		"2BP01": "another object depends on it: drop that first",
		"23514": "rows are in the way: correct or delete them, and run this again",
		"23505": "rows are in the way: correct or delete them, and run this again",
		"25006": "this is a replica or a read-only session: connect to the primary",
	}[sqlState(err)]
	if own := s.next[sqlState(err)]; own != "" {
		next = own
	}
	if next == "" {
		return fmt.Errorf("pglimit: migrate: %w", err)
	}
	return fmt.Errorf("pglimit: migrate: %w: %s", err, next)
}

// sqlState returns the SQLSTATE of an error of any driver, or "".
func sqlState(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// elsewhere is the next step if something stands that the set does not record.
func (s *Set) elsewhere() string {
	return "it was created in a way that " + s.table + " does not record, such as exported migrations in a goose folder or printed SQL: migrate in that way again"
}

func unread(err error) error { return fmt.Errorf("pglimit: read the migrations: %w", err) }

// file is one of a set's migrations.
type file struct {
	version int64
	name    string // after the number, without .sql
	path    string // in the set's files
}

// list returns the set's migrations in the order of their versions.
func (s *Set) list() []file {
	names, _ := fs.Glob(s.files, "*.sql") // fails only for a malformed pattern
	var all []file
	for _, n := range names {
		if version, err := goose.NumericComponent(n); err == nil {
			all = append(all, file{version: version, name: nameOf(n), path: n})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return cmp.Compare(a.version, b.version) })
	return all
}

func (s *Set) versions() []int64 {
	var all []int64
	for _, f := range s.list() {
		all = append(all, f.version)
	}
	return all
}

// nameOf returns "tables" for "00001_tables.sql".
func nameOf(file string) string {
	_, name, _ := strings.Cut(path.Base(file), "_")
	return strings.TrimSuffix(name, ".sql")
}
