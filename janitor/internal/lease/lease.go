// Package lease is about the lease that lets one janitor sweep at a time, and about the
// statements that a janitor sends while it has the lease.
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

const (
	name = "janitor" // of the lease's row in pglimit_lease

	// releaseTimeout is how long Release tries.
	releaseTimeout = 5 * time.Second

	// attempts is how often a statement is sent that collides with others.
	attempts = 5
)

// SQLSTATEs that matter to a sweep.
const (
	LockNotAvailable     = "55P03"
	undefinedTable       = "42P01"
	serializationFailure = "40001" // if the default isolation is repeatable read or stricter
	deadlockDetected     = "40P01"
)

// Lease is one holder's lease. It is not for concurrent use.
type Lease struct {
	// Lasts is how long the lease lasts after each Take.
	Lasts time.Duration

	pool    *pgxpool.Pool
	queries *db.Queries
	holder  string
	clock   func() time.Time // nil is the database's
	renewed time.Time        // when Take was last called
	mine    bool             // whether this holder may have it
}

// New returns a lease that is not taken yet. It runs by the clock or, if that is nil, by
// the database's.
func New(pool *pgxpool.Pool, lasts time.Duration, clock func() time.Time) *Lease {
	return &Lease{Lasts: lasts, pool: pool, queries: db.New(), holder: rand.Text(), clock: clock}
}

// Take takes the lease or prolongs it. It returns false if another holder has it.
func (l *Lease) Take(ctx context.Context) (taken bool, err error) {
	l.renewed = l.now()
	err = l.Statement(ctx, func(ctx context.Context) error {
		_, err := l.queries.LeaseTake(ctx, l.pool, db.LeaseTakeParams{
			Name: name, Holder: l.holder, TtlUs: l.Lasts.Microseconds(), NowUs: l.NowUs(),
		})
		return err
	})
	var answer *pgconn.PgError
	elsewhere := errors.Is(err, pgx.ErrNoRows)
	l.mine = !elsewhere && !errors.As(err, &answer) // without any answer it may have been taken
	if elsewhere {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("pglimit: take the janitor's lease: %w", err)
	}
	return true, nil
}

// Keep prolongs the lease in time, and returns false if another holder has taken it.
func (l *Lease) Keep(ctx context.Context) (kept bool, err error) {
	if l.now().Sub(l.renewed) > l.Lasts/3 {
		return l.Take(ctx)
	}
	return true, nil
}

// Release gives the lease up if this holder may have it, even after ctx has ended.
func (l *Lease) Release(ctx context.Context) error {
	if !l.mine {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := l.Statement(ctx, func(ctx context.Context) error {
		return l.queries.LeaseRelease(ctx, l.pool, db.LeaseReleaseParams{Name: name, Holder: l.holder})
	})
	if err != nil {
		return fmt.Errorf("pglimit: give the janitor's lease up: %w", err)
	}
	l.mine = false
	return nil
}

// Statement sends one statement, and again if it collided with others. Each try may
// take as long as the lease lasts.
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
			return fmt.Errorf("it took longer than the lease, %v: look for what holds the table, lower BatchSize or raise Lease: %w", l.Lasts, err)
		case answer == nil:
			return err
		case answer.Code == undefinedTable:
			return fmt.Errorf("%w: run `pglimit migrate up`, or look at search_path", err)
		case try == attempts || !slices.Contains([]string{serializationFailure, deadlockDetected, LockNotAvailable}, answer.Code):
			return err
		}
	}
}

// NowUs returns the present as statements take it: nil is the database's clock.
func (l *Lease) NowUs() *int64 {
	if l.clock == nil {
		return nil
	}
	us := l.clock().UnixMicro()
	return &us
}

// now returns the time by which the lease is prolonged.
func (l *Lease) now() time.Time {
	if l.clock != nil {
		return l.clock()
	}
	return time.Now()
}
