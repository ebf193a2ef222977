// Package migrations creates and updates pglimit's tables: one per algorithm, one for
// reservations, one for leases, and views for people. The program embeds them as goose
// migrations.
//
// There are four ways to run the migrations. Choose one for each schema and keep it:
//
//   - [Up] or [UpSQL] at the start of an application, or `pglimit migrate up` in a
//     deployment. [VersionTable] records which migrations have run, separately from the
//     application's goose table. A lock makes concurrent calls safe.
//   - [FS] in the application's goose provider, with a separate version table.
//   - [Export] into the application's goose folder: pglimit's migrations get the next
//     numbers there and run with the application's.
//   - [Print], for other tools: plain SQL. The tool records what has run.
//
// [Status] reports what [VersionTable] records. [Present] reports what exists, and [Records]
// what an application's goose recorded, for the other ways.
//
// The tables are created in the first schema of the connection's search_path that
// exists. To use a separate schema, create it and end the connection string in
// ?search_path=limits.
//
// [Functions] is a second, optional sequence with a separate record. It creates the
// limiter as SQL functions, for programs in other languages: see [UpFunctions].
//
// Migrating needs the right to create tables. Deciding needs only SELECT, INSERT,
// UPDATE and DELETE on them, and less through the SQL functions: [PlanGrants] returns the
// statements that give each role its rights. No other role should be able to create objects in the
// schemas of the search_path: [Strangers] lists roles that can.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// FS contains the migrations, named NNNNN_<name>.sql, in goose's format, for an
// application's goose provider.
//
//go:embed *.sql
var FS embed.FS

// VersionTable is the table in which [Up], [UpTo] and [Down] record which migrations have
// run. It is in the schema of pglimit's tables.
const VersionTable = "pglimit_goose_db_version"

const (
	// Latest makes [UpTo] run all migrations.
	Latest int64 = math.MaxInt64
	// Previous makes [Down] undo only the last migration.
	Previous int64 = -1
)

// ErrNoSuchVersion is returned by [UpTo] and [Down] if no migration has the version.
// Nothing was changed.
var ErrNoSuchVersion = errors.New("pglimit: there is no such migration")

// Migration is the status of one migration.
type Migration struct {
	// Version is its number, from 1.
	Version int64
	// Name is the name of its file without the number and .sql, such as "tables".
	Name string
	// Applied reports whether it has run.
	Applied bool
	// AppliedAt is when it ran; zero if Applied is false. goose stores it without
	// a time zone: it is wrong if the session's TimeZone has changed since.
	AppliedAt time.Time
}

// Step is a migration that was just run or undone.
type Step struct {
	// Version is its number, from 1.
	Version int64
	// Name is the name of its file without the number and .sql, such as "tables".
	Name string
	// Took is its duration.
	Took time.Duration
}

// Up runs all migrations that have not run yet, each in a separate transaction. It may
// be called at every start and by many processes concurrently: one works, and the others
// wait for at most five minutes, checking once a second. slog.Default() gets a warning that
// names the session that holds the lock. The error of a wait that ended names it too. If no
// migration is pending, Up takes no lock and needs only the right to read [VersionTable].
//
// The lock belongs to a session, so pool must connect to the server directly or through
// a pooler in session mode. One connection is enough. If ctx is cancelled, the current
// migration is rolled back and the earlier ones stay.
//
// Up does not check whether other roles may create objects in the schemas of the
// search_path: [Strangers] does, and `pglimit migrate up` warns.
func Up(ctx context.Context, pool *pgxpool.Pool) error { return Tables.Up(ctx, pool) }

// UpSQL does what [Up] does for database/sql, with any PostgreSQL driver. It does not
// close db.
func UpSQL(ctx context.Context, db *sql.DB) error { return Tables.UpSQL(ctx, db) }

// UpTo runs migrations as [Up] does, up to and including version to; [Latest] runs all.
// It returns the migrations that it ran, in order: none if none was pending. On an error,
// it returns the migrations that ran before, and they stay.
func UpTo(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	return Tables.UpTo(ctx, pool, to)
}

// Down undoes migrations, the last first, until version to is the last one applied. 0
// undoes all and deletes all limits' data; [Previous] undoes one. Down returns the
// migrations that it undid, in order: none if there was nothing to undo. Locks and errors
// are as with [UpTo].
//
// Down may run under traffic. Afterwards limiters return limiter.ErrNotMigrated. No other
// statement waits for Down longer than a fraction of deadlock_timeout, or fails with a
// deadlock because of it. If other transactions leave no gap for about ten seconds, Down
// returns an error with the next step, and the current migration stays applied.
func Down(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	return Tables.Down(ctx, pool, to)
}

// Status returns all migrations in order, and whether each has run. It only reads and
// takes no lock.
func Status(ctx context.Context, pool *pgxpool.Pool) ([]Migration, error) {
	return Tables.Status(ctx, pool)
}
