// Package leader keeps the lease that lets one janitor sweep at a time, and sends the
// janitor's statements within its duration.
package leader

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Longest is the longest duration of a lease. A lease that ends later than that cannot be
// a janitor's and is free: a role that may write the table cannot stop all sweeps by one
// row.
const Longest = 72 * time.Hour

// Name is the lease's name in pglimit_lease, and the sweep's in pglimit_sweep.
const Name = "janitor"

const releaseTimeout = 5 * time.Second

// UndefinedTable is the SQLSTATE of a statement whose table does not exist.
const UndefinedTable = "42P01"

// Lease is one holder's lease. It is not safe for concurrent use.
type Lease struct {
	// Lasts is the duration of the lease after each Take, at most Longest.
	Lasts time.Duration

	run     exec.Runner
	queries *db.Queries
	holder  string
	clock   func() time.Time // nil for the database's clock
	renewed time.Time        // time of the last Take
	mine    bool             // this holder may have the lease
}

// New returns a lease that is not taken yet. It uses clock or, if clock is nil, the
// database's clock.
func New(run exec.Runner, lasts time.Duration, clock func() time.Time) *Lease {
	return &Lease{Lasts: lasts, run: run, queries: db.New(), holder: rand.Text(), clock: clock}
}

// Holder returns this holder's name.
func (l *Lease) Holder() string { return l.holder }

// Take takes or renews the lease. It returns false if another holder has it.
func (l *Lease) Take(ctx context.Context) (taken bool, err error) {
	l.renewed = l.now()
	err = l.Statement(ctx, func(ctx context.Context, tx db.DBTX) error {
		_, err := l.queries.LeaseTake(ctx, tx, db.LeaseTakeParams{
			Name: Name, Holder: l.holder, TtlUs: l.Lasts.Microseconds(), LongestUs: Longest.Microseconds(), NowUs: l.NowUs(),
		})
		return err
	})
	elsewhere := errors.Is(err, pgx.ErrNoRows)
	l.mine = !elsewhere && exec.SQLState(err) == "" // if no answer came, the server may have granted it
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
	err := l.Statement(ctx, func(ctx context.Context, tx db.DBTX) error {
		return l.queries.LeaseRelease(ctx, tx, db.LeaseReleaseParams{Name: Name, Holder: l.holder})
	})
	if err != nil {
		return fmt.Errorf("pglimit: give up the janitor's lease: %w", err)
	}
	l.mine = false
	return nil
}

// Statement sends one statement, and sends it again if it collided with others. All that
// may take as long as the lease lasts.
func (l *Lease) Statement(ctx context.Context, send func(context.Context, db.DBTX) error) error {
	return l.Send(ctx, exec.Statement, send)
}

// Send is Statement for a mode.
func (l *Lease) Send(ctx context.Context, m exec.Mode, send func(context.Context, db.DBTX) error) error {
	limited, cancel := context.WithTimeout(ctx, l.Lasts)
	defer cancel()
	err := l.run.Run(limited, m, func(tx db.DBTX) error { return send(limited, tx) })
	switch {
	case err == nil:
		return nil
	case limited.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("it took longer than the lease, %v: look for locks on the table, lower BatchSize or raise Lease: %w", l.Lasts, err)
	case exec.SQLState(err) == UndefinedTable:
		return fmt.Errorf("%w: run `pglimit migrate up`, or check search_path", err)
	}
	return err
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
