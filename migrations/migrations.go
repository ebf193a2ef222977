// Package migrations creates and updates pglimit's tables: one per algorithm, one for
// reservations, one for leases, and views for people. The program embeds them as goose
// migrations.
//
// There are four ways to run the migrations. Choose one for each schema and keep it:
//
//   - [Up] or [UpSQL] at the start of an application, or `pglimit migrate up` in a
//     deployment. The table pglimit_goose_db_version records which migrations have run,
//     separately from the application's goose table. A lock makes concurrent calls safe.
//   - [FS] in the application's goose provider, with a separate version table.
//   - [Export] into the application's goose folder: pglimit's migrations get the next
//     numbers there and run with the application's.
//   - `pglimit migrate print`, for other tools: plain SQL. The tool records what has run.
//
// The tables are created in the first schema of the connection's search_path that
// exists. To use a separate schema, create it and end the connection string in
// ?search_path=limits. `pglimit migrate down` undoes migrations, and `pglimit migrate
// status` reports what has run, in each of the four ways.
//
// [Functions] is a second, optional sequence with a separate record. It creates the
// limiter as SQL functions, for programs in other languages.
//
// Migrating needs the right to create tables. Deciding needs only SELECT, INSERT,
// UPDATE and DELETE on them, and less through the SQL functions: `pglimit migrate grants`
// prints the statements that give each role its rights. No other role should be able to
// create objects in the schemas of the search_path: `pglimit doctor` lists roles that can.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/strangers"
)

//go:embed *.sql functions/*.sql
var files embed.FS

var tables = migrate.Tables(files)

// Up runs all migrations of the tables that have not run yet, each in a separate
// transaction. It may be called at every start and by many processes concurrently: one
// works, and the others wait for at most five minutes, checking once a second.
// slog.Default() gets a warning that names the session that holds the lock. The error of a
// wait that ended names it too. If no migration is pending and nothing is to be made again, Up
// takes no lock of migrations and needs only the right to read pglimit_goose_db_version.
//
// First Up compares what stands with what the migrations on record made. What is missing or
// changed it makes again, in one transaction: a table, column, constraint, index, view,
// trigger or function. A table is then empty, and roles need their rights again. Migrations
// that stand and have lost their record are recorded. What Up cannot make again is in its
// error, with the next step; then nothing was changed. What was added stays. Nothing is
// compared if a later release has migrated.
//
// The lock belongs to a session, so pool must connect to the server directly or through
// a pooler in session mode. One connection is enough. If ctx is cancelled, the current
// migration is rolled back and the earlier ones stay.
//
// Up does not check whether other roles may create objects in the schemas of the
// search_path: `pglimit migrate up` warns, and so does package doctor.
func Up(ctx context.Context, pool *pgxpool.Pool) error { return tables.Up(ctx, pool) }

// UpSQL does what [Up] does for database/sql, with any PostgreSQL driver. It does not
// close db.
func UpSQL(ctx context.Context, db *sql.DB) error { return tables.UpSQL(ctx, db) }

// FS returns the migrations of the tables, named NNNNN_<name>.sql, in goose's format, for an
// application's goose provider.
func FS() fs.FS { return tables.FS() }

// Export copies the migrations of the tables into dir, the folder of an application's goose
// migrations, so that they run with the application's and in its version table. Run it
// again after each update of pglimit: it skips a migration if dir has a file
// *_pglimit_<name>.sql with any number.
//
// Files are called NNNNN_pglimit_<name>.sql and continue the numbers in dir. The first
// number is
//
//   - 00001 if dir has no migrations;
//   - one more than the highest, with as many digits; or
//   - if the highest is a time of 14 digits, the present in UTC, or one second after the
//     highest if that is later.
//
// Export returns the paths of the files that it wrote, in order. It never overwrites a
// file. On an error, it returns the files written before, and they stay.
func Export(dir string) ([]string, error) { return tables.Export(dir) }

// Set is a sequence of migrations with a separate record: [Functions]. Its methods are safe
// for concurrent use.
type Set struct{ set *migrate.Set }

// Functions are the SQL functions of schemas pglimit and pglimit_ask, for programs in
// other languages: docs/sql.md. They are optional. They need the tables and find them with any
// search_path of the caller. A database has one set of functions, recorded in
// pglimit_functions_goose_db_version. Create the tables first, and undo the functions before
// the tables. Run Functions.Up after each update of pglimit.
var Functions = Set{migrate.Functions(folder("functions"))}

// ErrExposed is returned by [Set.Up] and [Set.UpSQL] if a migration is pending and other
// roles may create objects in a schema that the functions would use: the functions could
// run such a role's objects. Nothing was changed. The message lists each such schema and
// the next step.
var ErrExposed = strangers.ErrExposed

// Up is [Up] for this set.
func (s Set) Up(ctx context.Context, pool *pgxpool.Pool) error { return s.set.Up(ctx, pool) }

// UpSQL is [UpSQL] for this set.
func (s Set) UpSQL(ctx context.Context, db *sql.DB) error { return s.set.UpSQL(ctx, db) }

// FS is [FS] for this set.
func (s Set) FS() fs.FS { return s.set.FS() }

// Export is [Export] for this set.
func (s Set) Export(dir string) ([]string, error) { return s.set.Export(dir) }

func folder(name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // it is embedded
	}
	return sub
}
