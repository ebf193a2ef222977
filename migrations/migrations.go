// Package migrations makes and changes pglimit's tables: seven tables, one per
// algorithm, a lease, and a view over each table for people to look at. The
// SQL lies beside this file as goose migrations and is part of the program.
//
// There are four ways to run it; choose one per schema and stay with it:
//
//   - [Up], or [UpSQL], at the start of an application, or `pglimit migrate up` in a
//     deployment. Which migrations ran is kept in [VersionTable], apart from an
//     application's own goose table, and a lock makes it safe to call from many
//     processes at once.
//   - [FS] in a goose provider of the application's own, with a version table
//     of its own.
//   - [Export] into the application's goose folder: pglimit's migrations get
//     the next numbers there and run with the application's.
//   - [Print], for other tools: plain SQL. The tool keeps the record of it.
//
// The tables go into the first schema of the connection's search_path that
// exists; a connection string that ends in ?search_path=limits keeps them in a
// schema of their own, which has to exist.
//
// The same limiter as SQL functions, for programs in other languages, is a second
// and optional sequence, [Functions], with a record of its own: [UpFunctions].
//
// Running migrations takes the right to create tables. Deciding limits takes
// SELECT, INSERT, UPDATE and DELETE on them, and nothing else. No other role
// should be able to create objects in the schemas of the search_path: [Strangers]
// lists those that can.
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

// FS holds the migrations, named NNNNN_<name>.sql, in goose's format. It is
// for goose providers of an application's own.
//
//go:embed *.sql
var FS embed.FS

// VersionTable is the table in which [Up], [UpTo] and [Down] keep which
// migrations have run. It stands beside pglimit's tables.
const VersionTable = "pglimit_goose_db_version"

const (
	// Latest asks [UpTo] for all migrations there are.
	Latest int64 = math.MaxInt64
	// Previous asks [Down] to undo the one migration that ran last.
	Previous int64 = -1
)

// ErrNoSuchVersion is returned by [UpTo] and [Down] when asked for a version
// that no migration has. Nothing was done.
var ErrNoSuchVersion = errors.New("pglimit: there is no such migration")

// Migration says of one migration whether it has been run.
type Migration struct {
	// Version is its number, from 1 on.
	Version int64
	// Name is what its file is called after the number, such as "tables".
	Name string
	// Applied tells whether it has been run.
	Applied bool
	// AppliedAt is when; zero if Applied is false. goose keeps it without a
	// time zone: it is right if the session's TimeZone is still the same.
	AppliedAt time.Time
}

// Step is a migration that was run or undone just now.
type Step struct {
	// Version is its number, from 1 on.
	Version int64
	// Name is what its file is called after the number, such as "tables".
	Name string
	// Took is how long it took.
	Took time.Duration
}

// Up runs all migrations that have not been run yet, each in a transaction of
// its own. It may be called at every start and from many processes at once:
// one works and the others wait, looking again each second, for five minutes
// at most. If nothing is to be done, no lock is taken, and the right to read
// [VersionTable] is enough.
//
// Up does not look at who else may create objects in the schemas of the
// search_path: [Strangers] does, and `pglimit migrate up` warns.
//
// The lock belongs to a session, so pool has to reach the server itself or
// through a pooler in session mode. One connection is enough. A cancelled ctx
// undoes the migration that is running and leaves those before it.
func Up(ctx context.Context, pool *pgxpool.Pool) error { return Tables.Up(ctx, pool) }

// UpSQL is [Up] for users of database/sql, with any PostgreSQL driver. db stays
// the caller's to close.
func UpSQL(ctx context.Context, db *sql.DB) error { return Tables.UpSQL(ctx, db) }

// UpTo is [Up] until version to and no further; [Latest] is all there are. It
// returns what it ran, in order, and empty if there was nothing to do. On an
// error, what ran before it is returned, and stays.
func UpTo(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	return Tables.UpTo(ctx, pool, to)
}

// Down undoes migrations, the last first, until version to is the last that
// stands: 0 undoes all, and deletes all limits' data; [Previous] undoes one.
// It returns what it undid, in order, and empty if there was nothing to undo.
// Locks and errors are as with [UpTo].
//
// It may run under traffic, whose callers get limiter.ErrNotMigrated afterwards.
// No statement of theirs waits longer than a fraction of deadlock_timeout for
// Down, or fails with a deadlock because of it. If other transactions leave no
// gap for about ten seconds, Down returns an error that says the next step, and
// the migration that it was undoing stands.
func Down(ctx context.Context, pool *pgxpool.Pool, to int64) ([]Step, error) {
	return Tables.Down(ctx, pool, to)
}

// Status tells of every migration whether it has been run, in order. It only
// reads, and takes no lock.
func Status(ctx context.Context, pool *pgxpool.Pool) ([]Migration, error) {
	return Tables.Status(ctx, pool)
}
