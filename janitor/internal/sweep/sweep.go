// Package sweep looks once at all rows that are due, and at all holds that have expired.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/janitor/internal/lease"
	"github.com/pglimit/pglimit/janitor/internal/tables"
)

// holdWait is how long a statement waits for the rows of a hold. A transaction that has
// them for longer is using the hold; the next sweep tries again.
const reservationWait = "20ms"

// errNewer is the error of a hold of an algorithm that this version does not know.
var errNewer = errors.New("a newer pglimit made it")

// Sweep is one pass over the tables.
type Sweep struct {
	Pool      *pgxpool.Pool
	Lease     *lease.Lease
	BatchSize int
	Logger    *slog.Logger
	// CountRows is called after each batch of a table, and CountHold after each hold
	// that was given back.
	CountRows        func(table string, deleted, kept int64)
	CountReservation func()

	// elsewhere is set once another process has the lease: the sweep ends then.
	elsewhere bool
}

// Run takes the lease and sweeps. It returns heldElsewhere if another process has the
// lease, or has taken it meanwhile. A table that fails does not keep Run from sweeping
// the others, unless the connection is gone or ctx has ended.
func (s *Sweep) Run(ctx context.Context) (heldElsewhere bool, err error) {
	taken, err := s.Lease.Take(ctx)
	if err != nil {
		return false, err
	}
	if !taken {
		return true, nil
	}
	err = s.all(ctx)
	return s.elsewhere, err
}

// all gives back the expired holds and sweeps each table.
func (s *Sweep) all(ctx context.Context) error {
	var cutoff int64
	err := s.Lease.Statement(ctx, func(ctx context.Context) (err error) {
		cutoff, err = db.New().Clock(ctx, s.Pool, s.Lease.NowUs())
		return err
	})
	if err != nil {
		return fmt.Errorf("pglimit: read the clock: %w", err)
	}
	var failed []error
	if err := s.giveBack(ctx, cutoff); err != nil {
		failed = append(failed, err)
	}
	for _, t := range tables.All {
		err := s.look(ctx, t, cutoff)
		if err != nil {
			failed = append(failed, err)
		}
		var answer *pgconn.PgError
		if s.elsewhere || err != nil && (ctx.Err() != nil || !errors.As(err, &answer)) {
			break // the lease is lost, ctx has ended or no server answers
		}
	}
	return errors.Join(failed...)
}

// giveBack ends the holds that had expired at cutoff, batch after batch. It leaves the
// holds that a transaction is using, and those that fail: the error is that of the
// first.
func (s *Sweep) giveBack(ctx context.Context, cutoff int64) (failed error) {
	left := map[string]bool{} // for a later sweep
	for {
		if err := s.keepLease(ctx); err != nil || s.elsewhere {
			return errors.Join(failed, err)
		}
		rows := s.BatchSize + len(left)
		var expired []db.ReservationsExpiredRow
		err := s.Lease.Statement(ctx, func(ctx context.Context) (err error) {
			expired, err = db.New().ReservationsExpired(ctx, s.Pool, db.ReservationsExpiredParams{CutoffUs: cutoff, MaxRows: int64(rows)})
			return err
		})
		if err != nil {
			return errors.Join(failed, fmt.Errorf("pglimit: list expired reservations: %w", err))
		}
		for _, h := range expired {
			if left[h.ID] {
				continue
			}
			err := s.giveBackOne(ctx, h, cutoff)
			var answer *pgconn.PgError
			switch {
			case err == nil:
				s.CountReservation()
				continue
			case errors.As(err, &answer) && answer.Code == lease.LockNotAvailable:
			case errors.As(err, &answer) || errors.Is(err, errNewer):
				failed = cmp.Or(failed, err)
			default: // no server answers
				return errors.Join(failed, err)
			}
			left[h.ID] = true
		}
		if len(expired) < rows {
			return failed
		}
	}
}

// giveBackOne ends one hold as of cutoff. By the present of a clock that was set back
// since, the hold would not have expired, and be found again and again.
func (s *Sweep) giveBackOne(ctx context.Context, h db.ReservationsExpiredRow, cutoff int64) error {
	end := tables.Settle[h.Algorithm]
	if end == nil {
		return fmt.Errorf("pglimit: give back reservation %s: no algorithm %q: %w", h.ID, h.Algorithm, errNewer)
	}
	p := db.TokenBucketSettleParams{ID: h.ID, State: "expired", NowUs: &cutoff, LockTimeout: reservationWait}
	if err := s.Lease.Statement(ctx, func(ctx context.Context) error { return end(ctx, s.Pool, p) }); err != nil {
		return fmt.Errorf("pglimit: give back reservation %s: %w", h.ID, err)
	}
	return nil
}

// look looks at the rows of t that were due at cutoff, batch after batch, until one is
// not full or the lease is lost.
func (s *Sweep) look(ctx context.Context, t tables.Table, cutoff int64) error {
	for {
		if err := s.keepLease(ctx); err != nil || s.elsewhere {
			return err
		}
		var deleted, kept int64
		err := s.Lease.Statement(ctx, func(ctx context.Context) (err error) {
			deleted, kept, err = t.Sweep(ctx, s.Pool, cutoff, int64(s.BatchSize))
			return err
		})
		if err != nil {
			return fmt.Errorf("pglimit: sweep %s: %w", t.Name, err)
		}
		s.CountRows(t.Name, deleted, kept)
		if deleted+kept < int64(s.BatchSize) {
			return nil
		}
	}
}

// keepLease prolongs the lease in time. It sets elsewhere if the lease is lost.
func (s *Sweep) keepLease(ctx context.Context) error {
	kept, err := s.Lease.Keep(ctx)
	if err == nil && !kept {
		s.elsewhere = true
		s.Logger.WarnContext(ctx, "pglimit: the janitor lost its lease during a sweep; another process goes on",
			"lease", s.Lease.Lasts)
	}
	return err
}
