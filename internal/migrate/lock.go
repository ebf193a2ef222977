package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3/lock"
)

// The lock of migrations is an advisory lock. lockID differs from goose's default, so that
// an application may call Up while it has goose's lock.
const (
	lockPeriod = time.Second
	lockTries  = 300
	lockID     = int64(0x70676c696d6974) // "pglimit"
)

// tryLock calls a function that tries to take the advisory lock $1. It returns the
// sessions that hold the lock, with the next step, or an empty text if it took the lock.
// The state of other roles' sessions is visible to roles of pg_read_all_stats only.
const tryLock = `
SELECT CASE WHEN pg_catalog.%s($1::bigint) THEN ''::text ELSE coalesce((
    SELECT pg_catalog.string_agg(pg_catalog.format(
        'process %%1$s of role %%2$s, application %%3$L%%4$s: if it does not migrate, run SELECT pg_terminate_backend(%%1$s)'::text,
        a.pid, pg_catalog.quote_ident(a.usename::text), a.application_name, ', '::text || a.state || ' since '::text || a.state_change::text), '; '::text)
    FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory'::text AND l.granted AND l.objsubid = 1::smallint
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
      AND l.classid::bigint = $1::bigint >> 32 AND l.objid::bigint = $1::bigint & 4294967295::bigint
), 'a session that has just ended, or a transaction of pg_prepared_xacts'::text) END`

// TryLock tries to take the lock of migrations until tx ends. It returns what holds the lock,
// with the next step, or an empty text if it took the lock.
func TryLock(ctx context.Context, tx pgx.Tx) (held string, err error) {
	err = tx.QueryRow(ctx, fmt.Sprintf(tryLock, "pg_try_advisory_xact_lock"), lockID).Scan(&held)
	return held, err
}

// Await calls try until it takes the lock of migrations: once a second, for at most five
// minutes. try returns what [TryLock] does. While Await waits, and in its error, it says
// what holds the lock.
func Await(ctx context.Context, what string, try func() (held string, err error)) error {
	for tries := 0; ; tries++ {
		held, err := try()
		if err != nil || held == "" {
			return err
		}
		if tries == lockTries {
			return fmt.Errorf("%s: another session has held the lock of migrations for too long: %s", what, held)
		}
		if tries == 0 {
			slog.WarnContext(ctx, "pglimit: waiting for the lock of migrations", "held_by", held)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: wait for the lock of migrations, held by %s: %w", what, held, ctx.Err())
		case <-time.After(lockPeriod):
		}
	}
}

// sessionLock is goose's lock, with Await.
type sessionLock struct{ lock.SessionLocker }

func (sessionLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	return Await(ctx, "lock", func() (held string, err error) {
		err = conn.QueryRowContext(ctx, fmt.Sprintf(tryLock, "pg_try_advisory_lock"), lockID).Scan(&held)
		return held, err
	})
}
