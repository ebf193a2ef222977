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
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
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
// Each of its migrations makes all functions anew, and a release that changes one
// brings a new one: after an update of pglimit run [UpFunctions] again. Undoing
// any of them removes all functions. Run it once the tables are there; undo it
// before them.
var Functions = &Set{
	files: functions, dir: "functions", table: "pglimit_functions_goose_db_version", guarded: true,
	next: map[string]string{
		"42501": "the role lacks the right to do this: migrate as the owner of the database and of schema pglimit, or GRANT CREATE ON DATABASE to the role",
		"42P01": "make the tables first: run `pglimit migrate up` or call migrations.Up",
		"42723": "a database has one set of functions: undo them there first, with `pglimit migrate down --functions` or migrations.DownFunctions",
	},
}

// UpFunctions makes the SQL functions, or brings them up to this release: it is
// [Up] for [Functions]. If there is something to do and other roles may create
// objects in a schema of the search_path, it returns [ErrExposed] and does
// nothing: the functions run whatever such a role has put there. See [Strangers].
func UpFunctions(ctx context.Context, pool *pgxpool.Pool) error { return Functions.Up(ctx, pool) }

// DownFunctions removes the SQL functions, and schema pglimit if nothing else is
// in it. No limit's data is touched.
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
