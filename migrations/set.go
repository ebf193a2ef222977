package migrations

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
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
)

// How long to wait for another process that is migrating: lockTries tries,
// lockPeriod seconds apart. lockID is a number of pglimit's own, so that an
// application may call Up while it holds goose's default lock.
const (
	lockPeriod = 1
	lockTries  = 300
	lockID     = int64(0x70676c696d6974) // "pglimit"
)

// Set is a sequence of migrations with a record of its own. There are two,
// [Tables] and [Functions]; their methods may be called concurrently.
type Set struct {
	files embed.FS
	dir   string            // where they lie in files
	table string            // keeps the record
	next  map[string]string // what to do about an error of that SQLSTATE

	guarded bool // Up refuses where other roles may create objects
}

//go:embed functions/*.sql
var functions embed.FS

// Tables are the tables and views that every limiter needs. The functions of
// this package that have no Set in their names are its methods.
var Tables = &Set{
	files: FS, dir: ".", table: VersionTable,
	next: map[string]string{
		"42501": "the role lacks the right to do this: migrate as the owner of the schema, or GRANT CREATE ON SCHEMA to the role",
	},
}

// Functions are the SQL functions of schema pglimit, for programs in other
// languages: docs/sql.md. They are optional and need the tables, which they find
// whatever the search_path of their callers; a database has one set of them.
//
// A release that changes a function brings two migrations: after an update of
// pglimit run [UpFunctions] again. The first makes all functions anew, and undoing
// it removes all of them. Undoing the second stops new calls, so that the first is
// undone when no call is running. Run them once the tables are there; undo them
// before the tables.
var Functions = &Set{
	files: functions, dir: "functions", table: "pglimit_functions_goose_db_version", guarded: true,
	next: map[string]string{
		"42501": "the role lacks the right to do this: migrate as the owner of the database and of schema pglimit, or GRANT CREATE ON DATABASE to the role",
		"42P01": "make the tables first: run `pglimit migrate up` or call migrations.Up",
		"42723": "a database has one set of functions: undo them there first, with `pglimit migrate down --to 0 --functions` or migrations.DownFunctions",
	},
}

// UpFunctions makes the SQL functions, or brings them up to this release: it is
// [Up] for [Functions]. If there is something to do and other roles may create
// objects in a schema of the search_path, it returns [ErrExposed] and does
// nothing: the functions run whatever such a role has put there. See [Strangers].
func UpFunctions(ctx context.Context, pool *pgxpool.Pool) error { return Functions.Up(ctx, pool) }

// DownFunctions removes the SQL functions, and schema pglimit if nothing else is
// in it. No limit's data is touched.
//
// It may run under traffic. New calls fail at once, with SQLSTATE 42883 or 3F000: the
// function or its schema does not exist. The functions are dropped when the transactions
// that were running in the database have ended. If one takes longer than about ten
// seconds, DownFunctions returns an error that names its process. The functions then still
// exist under other names: call DownFunctions again, or [UpFunctions] to bring them back
// with the rights on them.
func DownFunctions(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := Functions.Down(ctx, pool, 0)
	return err
}

// FS holds the set's migrations in goose's format, for goose providers of an
// application's own.
func (s *Set) FS() fs.FS {
	sub, err := fs.Sub(s.files, s.dir)
	if err != nil {
		panic(err) // the names are ours
	}
	return sub
}

// VersionTable is the table in which the set's record is kept.
func (s *Set) VersionTable() string { return s.table }

// Up is the package's [Up] for this set.
func (s *Set) Up(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := s.UpTo(ctx, pool, Latest)
	return err
}

// UpSQL is the package's [UpSQL] for this set.
func (s *Set) UpSQL(ctx context.Context, db *sql.DB) error {
	if err := s.refuse(ctx, db, Latest); err != nil {
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

// UpTo is the package's [UpTo] for this set.
func (s *Set) UpTo(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	if to != Latest && !slices.Contains(s.versions(), to) {
		return nil, fmt.Errorf("%w: to is %d: take one of %v", ErrNoSuchVersion, to, s.versions())
	}
	db := stdlib.OpenDBFromPool(pool)
	if err := errors.Join(s.refuse(ctx, db, to), db.Close()); err != nil {
		return nil, err
	}
	return s.run(pool, func(p *goose.Provider) ([]*goose.MigrationResult, error) { return p.UpTo(ctx, to) })
}

// Down is the package's [Down] for this set.
func (s *Set) Down(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	if to != Previous && to != 0 && !slices.Contains(s.versions(), to) {
		return nil, fmt.Errorf("%w: to is %d: take 0 or one of %v", ErrNoSuchVersion, to, s.versions())
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

// Status is the package's [Status] for this set.
func (s *Set) Status(ctx context.Context, pool *pgxpool.Pool) ([]Migration, error) {
	db := stdlib.OpenDBFromPool(pool)
	applied, err := s.appliedAt(ctx, db)
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, s.explain(err)
	}
	var all []Migration
	for _, f := range s.list() {
		at, ok := applied[f.version]
		all = append(all, Migration{Version: f.version, Name: f.name, Applied: ok, AppliedAt: at})
	}
	return all, nil
}

// refuse returns ErrExposed if the set is guarded, a migration until version to
// is pending, and other roles may create objects.
func (s *Set) refuse(ctx context.Context, db *sql.DB, to int64) error {
	if !s.guarded {
		return nil
	}
	all, err := strangers(ctx, db)
	if err != nil || len(all) == 0 {
		return err
	}
	applied, err := s.appliedAt(ctx, db)
	if err != nil {
		return s.explain(err)
	}
	for _, f := range s.list() {
		if _, ok := applied[f.version]; !ok && f.version <= to {
			var each []string
			for _, e := range all {
				each = append(each, e.String())
			}
			return fmt.Errorf("%w: %s", ErrExposed, strings.Join(each, "; "))
		}
	}
	return nil
}

// appliedAt reads the set's record: empty if there is none.
func (s *Set) appliedAt(ctx context.Context, db *sql.DB) (map[int64]time.Time, error) {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = $1)`,
		s.table).Scan(&exists)
	if err != nil || !exists {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id, tstamp::timestamptz FROM `+s.table+` WHERE is_applied`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	applied := map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, err
		}
		applied[version] = at
	}
	return applied, rows.Err()
}

// run does one thing with a goose provider over pool.
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
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(lockPeriod, lockTries))
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, s.FS(),
		goose.WithTableName(s.table),
		goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true), // an application's Go migrations are not ours
		goose.WithLogger(goose.NopLogger()))
}

// explain says what to do about an error, where that is known.
func (s *Set) explain(err error) error {
	var answer interface{ SQLState() string } // of whatever driver
	switch {
	case errors.Is(err, goose.ErrVersionNotFound):
		return fmt.Errorf("pglimit: %s names a migration that this release of pglimit does not know (last known: %d): use the release that ran it: %w",
			s.table, slices.Max(s.versions()), err)
	case !errors.As(err, &answer):
		return fmt.Errorf("pglimit: migrate: %w", err)
	}
	next := map[string]string{
		"3F000": "no schema of the search_path exists: run CREATE SCHEMA first, or change search_path in the connection string",
		"42P07": "it was made by something else than " + s.table + " knows of, such as exported migrations in a goose folder or printed SQL: go on with that, not with this",
		"2BP01": "something of yours depends on it: drop that first",
		"25006": "this is a replica or a read-only session: connect to the primary",
	}[answer.SQLState()]
	if own := s.next[answer.SQLState()]; own != "" {
		next = own
	}
	if next == "" {
		return fmt.Errorf("pglimit: migrate: %w", err)
	}
	return fmt.Errorf("pglimit: migrate: %w: %s", err, next)
}

func unread(err error) error { return fmt.Errorf("pglimit: read the migrations: %w", err) }

// file is one of a set's migrations.
type file struct {
	version int64
	name    string // after the number, without .sql
	path    string // in the set's files
}

// list is the set's migrations in the order of their versions.
func (s *Set) list() []file {
	names, _ := fs.Glob(s.files, path.Join(s.dir, "*.sql")) // fails on a malformed pattern only
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

// nameOf makes "tables" of "00001_tables.sql".
func nameOf(file string) string {
	_, name, _ := strings.Cut(path.Base(file), "_")
	return strings.TrimSuffix(name, ".sql")
}
