package janitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// leaseName is the lease's row in pglimit_lease.
const leaseName = "janitor"

// Sweep looks once at all rows that were due when it began, and deletes those that
// hold nothing. It takes the lease for that, and, unless [Janitor.Run] is running,
// gives it up again; if another process holds the lease, it does nothing and
// says so in [Removed.HeldElsewhere]. A row that a transaction holds stays for
// the next sweep.
//
// It returns what it removed, also beside an error. A table that cannot be
// swept does not keep the others from it, unless the connection is gone or ctx
// has ended. If the tables do not exist, the error says how to make them.
func (j *Janitor) Sweep(ctx context.Context) (Removed, error) {
	removed, err := j.takeTurn(ctx)
	if j.cfg.OnSweep != nil {
		j.cfg.OnSweep(removed)
	}
	return removed, err
}

// takeTurn waits until no other sweep of this janitor runs, and sweeps.
func (j *Janitor) takeTurn(ctx context.Context) (Removed, error) {
	select {
	case <-j.turn:
		defer func() { j.turn <- struct{}{} }()
	case <-ctx.Done():
		return Removed{}, fmt.Errorf("pglimit: sweep: %w", ctx.Err())
	}
	s := sweep{Janitor: j, removed: Removed{ByTable: map[string]int64{}}}
	err := s.run(ctx)
	if !j.isRunning() {
		if late := j.release(ctx); err == nil {
			err = late
		}
	}
	return s.removed, err
}

// sweep is one pass over the tables.
type sweep struct {
	*Janitor
	removed Removed
	renewed time.Time // when the lease was last asked for
}

func (s *sweep) run(ctx context.Context) error {
	if err := s.renew(ctx); err != nil || s.removed.HeldElsewhere {
		return err
	}
	var cutoff int64
	err := s.statement(ctx, func(ctx context.Context) (err error) {
		cutoff, err = s.queries.Clock(ctx, s.pool, s.nowUs())
		return err
	})
	if err != nil {
		return fmt.Errorf("pglimit: read the clock: %w", err)
	}
	var failed []error
	if err := s.giveBack(ctx, cutoff); err != nil {
		failed = append(failed, err)
	}
	for _, t := range tables {
		err := s.look(ctx, t, cutoff)
		if err != nil {
			failed = append(failed, err)
		}
		var answer *pgconn.PgError
		if s.removed.HeldElsewhere || err != nil && (ctx.Err() != nil || !errors.As(err, &answer)) {
			break // lease lost, ctx ended or no server to answer
		}
	}
	return errors.Join(failed...)
}

// look looks at what was due in t at cutoff, batch after batch, until one is not
// full or the lease is lost.
func (s *sweep) look(ctx context.Context, t table, cutoff int64) error {
	for {
		if err := s.keepLease(ctx); err != nil || s.removed.HeldElsewhere {
			return err
		}
		var deleted, kept int64
		err := s.statement(ctx, func(ctx context.Context) (err error) {
			deleted, kept, err = t.sweep(ctx, s.pool, cutoff, int64(s.cfg.BatchSize))
			return err
		})
		if err != nil {
			return fmt.Errorf("pglimit: sweep %s: %w", t.name, err)
		}
		s.count(t.name, deleted, kept)
		if deleted+kept < int64(s.cfg.BatchSize) {
			return nil
		}
	}
}

// count adds rows to what this sweep and all sweeps did.
func (s *sweep) count(table string, deleted, kept int64) {
	s.removed.Kept += kept
	if deleted > 0 {
		s.removed.ByTable[table] += deleted
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept += kept
	if deleted > 0 {
		s.total[table] += deleted
	}
}

// keepLease renews the lease in time.
func (s *sweep) keepLease(ctx context.Context) error {
	if s.now().Sub(s.renewed) > s.cfg.Lease/3 {
		return s.renew(ctx)
	}
	return nil
}

// renew takes the lease or prolongs it; removed.HeldElsewhere says that
// another process has it.
func (s *sweep) renew(ctx context.Context) error {
	first := s.renewed.IsZero()
	s.renewed = s.now()
	err := s.statement(ctx, func(ctx context.Context) error {
		_, err := s.queries.LeaseTake(ctx, s.pool, db.LeaseTakeParams{
			Name: leaseName, Holder: s.holder, TtlUs: s.cfg.Lease.Microseconds(), NowUs: s.nowUs(),
		})
		return err
	})
	var answer *pgconn.PgError
	s.leased = !errors.Is(err, pgx.ErrNoRows) && !errors.As(err, &answer) // no answer at all: perhaps
	if errors.Is(err, pgx.ErrNoRows) {
		s.removed.HeldElsewhere = true
		if !first {
			s.cfg.Logger.WarnContext(ctx, "pglimit: the janitor lost its lease during a sweep; another process goes on",
				"lease", s.cfg.Lease)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("pglimit: take the janitor's lease: %w", err)
	}
	return nil
}

// release gives the lease up, if this janitor may have it, also after ctx has
// ended.
func (j *Janitor) release(ctx context.Context) error {
	if !j.leased {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := j.statement(ctx, func(ctx context.Context) error {
		return j.queries.LeaseRelease(ctx, j.pool, db.LeaseReleaseParams{Name: leaseName, Holder: j.holder})
	})
	if err != nil {
		return fmt.Errorf("pglimit: give the janitor's lease up: %w", err)
	}
	j.leased = false
	return nil
}

// now is the clock by which the lease is renewed.
func (j *Janitor) now() time.Time {
	if j.cfg.Now != nil {
		return j.cfg.Now()
	}
	return time.Now()
}

// nowUs is what the statements take as the present: nil is the database's clock.
func (j *Janitor) nowUs() *int64 {
	if j.cfg.Now == nil {
		return nil
	}
	us := j.cfg.Now().UnixMicro()
	return &us
}
