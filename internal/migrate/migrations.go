// Package migrate runs pglimit's migrations and reads what a database has of them: records
// and objects. Package migrations has their files and what applications use. The command and the
// doctor use package sets.
package migrate

import (
	"errors"
	"math"
	"time"
)

const (
	// Latest makes [Set.UpTo] run all migrations.
	Latest int64 = math.MaxInt64
	// Previous makes [Set.Down] undo only the last migration.
	Previous int64 = -1

	// Later is the Name of migrations of a later release.
	Later = "of a later release"
)

// ErrNoSuchVersion is returned by [Set.UpTo] and [Set.Down] if no migration has the version.
// Nothing was changed.
var ErrNoSuchVersion = errors.New("pglimit: there is no such migration")

// ErrDistributed is returned by [Set.Down] for tables that a Citus cluster has, since Citus
// refuses some of the statements that undo migrations. Nothing was changed.
var ErrDistributed = errors.New("pglimit: the tables are distributed")

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

// Step is a migration that was just run or undone, or of which something was mended.
type Step struct {
	// Version is its number, from 1.
	Version int64
	// Name is the name of its file without the number and .sql, such as "tables".
	Name string
	// Took is its duration; 0 if it had run before.
	Took time.Duration
	// Again is what was wrong and is made again, as in [Presence.Wrong], if it had run before.
	Again []string
}
