// Package lease keeps the lease that lets one janitor sweep at a time, and sends the
// janitor's statements within its duration.
package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
)

// Longest is the longest duration of a lease. A lease that ends later than that cannot be
// a janitor's and is free: a role that may write the table cannot stop all sweeps by one
// row.
const Longest = 72 * time.Hour

// Name is the lease's name in pglimit_lease, and the sweep's in pglimit_sweep.
const Name = "janitor"

const (
	releaseTimeout = 5 * time.Second

	// attempts is the number of times a statement is sent if it collides with others.
	attempts = 5
)

// SQLSTATEs that a sweep handles.
const (
	LockNotAvailable     = "55P03"
	UndefinedTable       = "42P01"
	serializationFailure = "40001" // if the default isolation is repeatable read or stricter
	deadlockDetected     = "40P01"
)

// Lease is one holder's lease. It is not safe for concurrent use.
type Lease struct {
	// Lasts is the duration of the lease after each Take, at most Longest.
	Lasts time.Duration

	pool    *pgxpool.Pool
	queries *db.Queries
	holder  string
	clock   func() time.Time // nil for the database's clock
	renewed time.Time        // time of the last Take
	mine    bool             // this holder may have the lease
}

// New returns a lease that is not taken yet. It uses clock or, if clock is nil, the
// database's clock.
func New(pool *pgxpool.Pool, lasts time.Duration, clock func() time.Time) *Lease {
	return &Lease{Lasts: lasts, pool: pool, queries: db.New(), holder: rand.Text(), clock: clock}
}

// Holder returns this holder's name.
func (l *Lease) Holder() string { return l.holder }

// Take takes or renews the lease. It returns false if another holder has it.
func (l *Lease) Take(ctx context.Context) (taken bool, err error) {
	l.renewed = l.now()
	err = l.Statement(ctx, func(ctx context.Context) error {
		_, err := l.queries.LeaseTake(ctx, l.pool, db.LeaseTakeParams{
			Name: Name, Holder: l.holder, TtlUs: l.Lasts.Microseconds(), LongestUs: Longest.Microseconds(), NowUs: l.NowUs(),
		})
		return err
	})
	var answer *pgconn.PgError
	elsewhere := errors.Is(err, pgx.ErrNoRows)
	l.mine = !elsewhere && !errors.As(err, &answer) // if no answer came, the server may have granted it
	if elsewhere {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("pglimit: take the janitor's lease: %w", err)
	}
	return true, nil
}

// Keep renews the lease if a third of it has passed. It returns false if another holder
// has taken it.
func (l *Lease) Keep(ctx context.Context) (kept bool, err error) {
	if l.now().Sub(l.renewed) > l.Lasts/3 {
		return l.Take(ctx)
	}
	return true, nil
}

// Release gives up the lease if this holder may have it, even if ctx has ended. It takes
// at most five seconds.
func (l *Lease) Release(ctx context.Context) error {
	if !l.mine {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := l.Statement(ctx, func(ctx context.Context) error {
		return l.queries.LeaseRelease(ctx, l.pool, db.LeaseReleaseParams{Name: Name, Holder: l.holder})
	})
	if err != nil {
		return fmt.Errorf("pglimit: give up the janitor's lease: %w", err)
	}
	l.mine = false
	return nil
}

// Statement sends one statement, and sends it again if it collided with others. Each
// attempt may take as long as the lease lasts.
func (l *Lease) Statement(ctx context.Context, send func(context.Context) error) error {
	for try := 1; ; try++ {
		limited, cancel := context.WithTimeout(ctx, l.Lasts)
		err := send(limited)
		late := limited.Err() != nil && ctx.Err() == nil
		cancel()

		var answer *pgconn.PgError
		errors.As(err, &answer)
		switch {
		case err == nil:
			return nil
		case late:
			return fmt.Errorf("it took longer than the lease, %v: look for locks on the table, lower BatchSize or raise Lease: %w", l.Lasts, err)
		case answer == nil:
			return err
		case answer.Code == UndefinedTable:
			return fmt.Errorf("%w: run `pglimit migrate up`, or check search_path", err)
		case try == attempts || !slices.Contains([]string{serializationFailure, deadlockDetected, LockNotAvailable}, answer.Code):
			return err
		}
	}
}

// NowUs returns the present for statements, in microseconds since 1970-01-01 UTC. nil
// selects the database's clock.
func (l *Lease) NowUs() *int64 {
	if l.clock == nil {
		return nil
	}
	us := l.clock().UnixMicro()
	return &us
}

// now returns the time that decides when to renew the lease.
func (l *Lease) now() time.Time {
	if l.clock != nil {
		return l.clock()
	}
	return time.Now()
}
