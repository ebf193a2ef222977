// Package sweep checks once all rows that are due and all reservations that have expired.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/janitor/internal/leader"
	"github.com/pglimit/pglimit/janitor/internal/tables"
)

// reservationWait is the time that a statement waits for the row locks of a reservation.
// If a transaction has them for longer, it is using the reservation; the next sweep tries
// again.
const reservationWait = "20ms"

// errNewer is the error for a reservation whose algorithm this version does not know.
var errNewer = errors.New("a newer pglimit made it")

// Sweep is one pass over the tables.
type Sweep struct {
	Lease     *leader.Lease
	BatchSize int
	// KeepDenials is the time for which counts of denials are kept.
	KeepDenials time.Duration
	Logger      *slog.Logger
	// CountRows is called after each batch of a table, and CountReservation after each
	// reservation whose units were returned.
	CountRows        func(table string, deleted, kept int64)
	CountReservation func()

	shards []tables.Shard
	// elsewhere is set when another process has the lease. Then the sweep ends.
	elsewhere bool
	// done is what a complete sweep records.
	done db.SweepRecordParams
}

// Run takes the lease and sweeps. heldElsewhere reports whether another process had the
// lease, or took it during the sweep. If one table fails, Run continues with the others,
// unless the connection is lost or ctx has ended.
func (s *Sweep) Run(ctx context.Context) (heldElsewhere bool, err error) {
	var owners db.TableOwnersRow
	var placed *shards.Map
	err = s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		if owners, err = db.New().TableOwners(ctx, tx); err == nil && owners.Citus {
			placed, err = shards.Read(ctx, tx)
		}
		return err
	})
	s.shards = tables.Shards(placed)
	switch {
	case err != nil:
		return false, fmt.Errorf("pglimit: sweep: read the owners of the tables, and whether they are distributed: %w", err)
	case owners.Several != "": // another role may have put a table in front of ours
		return false, fmt.Errorf("pglimit: nothing is swept: the tables in the search_path have several owners (%s): name only the schema of the migrated ones in the search_path, or give them one owner by ALTER TABLE … OWNER TO", owners.Several)
	}
	taken, err := s.Lease.Take(ctx)
	if err != nil {
		return false, err
	}
	if !taken {
		return true, nil
	}
	began := time.Now()
	err = s.all(ctx)
	if err == nil && !s.elsewhere {
		err = s.record(ctx, time.Since(began))
	}
	return s.elsewhere, err
}

// record writes down a complete sweep, for janitor.ReadState.
func (s *Sweep) record(ctx context.Context, took time.Duration) error {
	s.done.Name, s.done.Holder, s.done.TookUs, s.done.NowUs = leader.Name, s.Lease.Holder(), took.Microseconds(), s.Lease.NowUs()
	err := s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) error { return db.New().SweepRecord(ctx, tx, s.done) })
	if err != nil {
		return fmt.Errorf("pglimit: record the sweep, which is done: %w", err)
	}
	return nil
}

// all ends the expired reservations and sweeps each table.
func (s *Sweep) all(ctx context.Context) error {
	var cutoff int64
	err := s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		cutoff, err = db.New().Clock(ctx, tx, s.Lease.NowUs())
		return err
	})
	if err != nil {
		return fmt.Errorf("pglimit: read the clock: %w", err)
	}
	var failed []error
	if err := s.giveBack(ctx, cutoff); err != nil {
		failed = append(failed, err)
	}
	for _, shard := range s.shards {
		for _, t := range slices.Concat(tables.All, tables.Denials(s.KeepDenials, len(s.shards))) {
			err := s.look(ctx, t, shard, cutoff)
			if err != nil {
				failed = append(failed, err)
			}
			if s.elsewhere || err != nil && (ctx.Err() != nil || exec.SQLState(err) == "") {
				return errors.Join(failed...) // the lease is lost, ctx has ended or the server does not answer
			}
		}
	}
	if err := s.recount(ctx, cutoff); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// giveBack ends the reservations that had expired at cutoff, in batches. It skips those
// that a transaction is using and those that fail, and returns the first failure.
func (s *Sweep) giveBack(ctx context.Context, cutoff int64) (failed error) {
	left := map[db.ReservationsExpiredRow]bool{} // for a later sweep
	for {
		if err := s.keepLease(ctx); err != nil || s.elsewhere {
			return errors.Join(failed, err)
		}
		rows := s.BatchSize + len(left)
		var expired []db.ReservationsExpiredRow
		err := s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
			expired, err = db.New().ReservationsExpired(ctx, tx, db.ReservationsExpiredParams{CutoffUs: cutoff, MaxRows: int64(rows)})
			return err
		})
		if err != nil {
			return errors.Join(failed, fmt.Errorf("pglimit: list expired reservations: %w", err))
		}
		for _, h := range expired {
			if left[h] {
				continue
			}
			err := s.giveBackOne(ctx, h, cutoff)
			switch {
			case err == nil:
				s.done.ReservationsExpired++
				s.CountReservation()
				continue
			case exec.IsLockTimeout(ctx, err):
			case exec.SQLState(err) != "" || errors.Is(err, errNewer):
				failed = cmp.Or(failed, err)
			default: // the server does not answer
				return errors.Join(failed, err)
			}
			left[h] = true
		}
		if len(expired) < rows {
			return failed
		}
	}
}

// giveBackOne ends one reservation as of cutoff. If the clock was set back since, the
// reservation would not be expired at the present, and every batch would find it again.
// It does not wait for the disk: if its commit is lost, the next sweep ends the reservation.
func (s *Sweep) giveBackOne(ctx context.Context, h db.ReservationsExpiredRow, cutoff int64) error {
	end := tables.Settle[h.Algorithm]
	if end == nil {
		return fmt.Errorf("pglimit: give back reservation %s of policy %s: no algorithm %q: %w", h.ID, h.Policy, h.Algorithm, errNewer)
	}
	p := db.TokenBucketSettleParams{Policy: h.Policy, Key: h.Key, ID: h.ID, State: "expired", NowUs: &cutoff, Commit: "off", LockTimeout: reservationWait}
	one := tables.Shard{Distributed: s.shards[0].Distributed, Key: h.Key}
	if err := s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) error { return end(ctx, one.Of(tx), p) }); err != nil {
		return fmt.Errorf("pglimit: give back reservation %s of policy %s: %w", h.ID, h.Policy, err)
	}
	return nil
}

// look checks the rows of a shard of t that were due at cutoff, in batches, until a batch is
// not full or the lease is lost.
func (s *Sweep) look(ctx context.Context, t tables.Table, shard tables.Shard, cutoff int64) error {
	mode := exec.Statement
	if t.Several {
		mode = exec.Transaction
	}
	for {
		if err := s.keepLease(ctx); err != nil || s.elsewhere {
			return err
		}
		var deleted, kept int64
		err := s.Lease.Send(ctx, mode, func(ctx context.Context, tx db.DBTX) (err error) {
			deleted, kept, err = t.Sweep(ctx, tx, shard, cutoff, int64(s.BatchSize))
			return err
		})
		if err != nil {
			return fmt.Errorf("pglimit: sweep %s: %w", t.Name, err)
		}
		s.done.Removed += deleted
		s.done.Kept += kept
		s.CountRows(t.Name, deleted, kept)
		if deleted+kept < int64(s.BatchSize) {
			return nil
		}
	}
}

// keepLease renews the lease when needed. It sets elsewhere if the lease is lost.
func (s *Sweep) keepLease(ctx context.Context) error {
	kept, err := s.Lease.Keep(ctx)
	if err == nil && !kept {
		s.elsewhere = true
		s.Logger.WarnContext(ctx, "pglimit: the janitor lost its lease during a sweep; another process continues",
			"lease", s.Lease.Lasts)
	}
	return err
}
