package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// Reserve is one statement. If an admission under the same idempotency key exists, a
// second statement reads it, and a third confirms it. If that admission may be forgotten,
// it is forgotten first. A denial under an idempotency key also needs a second statement:
// see attempt.
func (p Store) Reserve(ctx context.Context, q *store.Query, a *store.Admission) (store.Outcome, error) {
	o, err := p.reserve(ctx, q, a)
	if err == nil && o.Before != nil {
		err = p.confirm(ctx, q, o.Before.ID)
	}
	return o, err
}

func (p Store) reserve(ctx context.Context, q *store.Query, a *store.Admission) (store.Outcome, error) {
	if !q.Possible() { // it may still have been admitted before
		o, err := p.Get(ctx, q) // first: an admission meanwhile is the answer
		if err != nil {
			return store.Outcome{}, err
		}
		before, err := p.readBefore(ctx, q, a)
		if err != nil || before != nil && !before.free() {
			return store.Outcome{Before: reservationOf(before)}, err
		}
		return o, nil
	}
	if a.Idempotency != "" && p.tx {
		if o, err := p.prepare(ctx, q, a); err != nil || o.Before != nil {
			return o, err
		}
	}
	for range exec.MaxTries {
		o, overdue, err := p.attempt(ctx, q, a)
		switch {
		case exec.IsDuplicate(err) && p.tx:
			return o, fmt.Errorf("%w: %w", store.ErrRetryTx, err)
		case exec.IsDuplicate(err), err == nil && overdue:
			if err := p.forget(ctx, q, a); err != nil {
				return store.Outcome{}, err
			}
		case err != nil || o.Before != nil || o.Decided:
			return o, err
		}
	}
	return store.Outcome{}, fmt.Errorf("%w: admissions under the idempotency key %s keep changing; try again", store.ErrUnavailable, store.Quote(a.Idempotency))
}

// attempt decides once. overdue reports that nothing was decided, because of an admission
// under the idempotency key that may be forgotten.
//
// A statement looks for that admission before it waits for the key's row. Meanwhile the
// same request, sent twice, may be admitted and take the room. So after a denial a second
// statement looks again.
//
// A denial that begins a block is decided once more, in a transaction that ends after the
// second look: no other request meets a block of a denial that is none. In the caller's
// transaction prepare has locked the row first.
func (p Store) attempt(ctx context.Context, q *store.Query, a *store.Admission) (o store.Outcome, overdue bool, err error) {
	if q.BlockFor == 0 || a.Idempotency == "" || p.tx {
		return p.attemptBy(ctx, p.runner.Do, q, a)
	}
	unblocked := *q
	unblocked.BlockFor = 0
	o, overdue, err = p.attemptBy(ctx, p.runner.Do, &unblocked, a)
	if err != nil || overdue || !denied(&o) || o.Blocked {
		return o, overdue, err
	}
	return p.attemptBy(ctx, p.runner.Within, q, a)
}

// denied reports whether a Reserve was decided and denied.
func denied(o *store.Outcome) bool { return o.Decided && o.Granted == 0 }

// attemptBy is attempt by run, which is Runner.Do or Runner.Within.
func (p Store) attemptBy(ctx context.Context, run exec.Run, q *store.Query, a *store.Admission) (o store.Outcome, overdue bool, err error) {
	o, err = p.decideBy(ctx, run, q, func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		overdue = false
		o, err := statement.Of(q.Algorithm).Reserve(ctx, tx, q, a)
		undecided := errors.Is(err, pgx.ErrNoRows)
		switch {
		case err != nil && !undecided:
			return o, err
		case !undecided && (!denied(&o) || p.tx || a.Idempotency == ""):
			return o, nil
		}
		var b *before
		if err = nil; a.Idempotency != "" {
			b, err = readBefore(ctx, tx, q, a) // nil: gone between the two statements
		}
		switch {
		case err != nil:
			return store.Outcome{}, err
		case b != nil:
			if overdue, o = b.free(), (store.Outcome{}); !overdue {
				o.Before = &b.Reservation
			}
			return o, exec.ErrRolledBack // the block
		case undecided && q.Calendar != nil:
			return store.Outcome{}, exec.ErrOtherPeriod
		case undecided: // what was there is gone
			return store.Outcome{}, nil
		}
		return o, nil
	})
	return o, overdue, err
}

// prepare makes sure that Reserve cannot fail in the caller's transaction. It locks the
// key's row, so that the transaction that had locked it has committed what Reserve reads.
func (p Store) prepare(ctx context.Context, q *store.Query, a *store.Admission) (o store.Outcome, err error) {
	before, err := p.readBefore(ctx, q, a)
	if err != nil || before != nil && !before.free() {
		return store.Outcome{Before: reservationOf(before)}, err
	}
	if before != nil {
		if err := p.forget(ctx, q, a); err != nil {
			return store.Outcome{}, err
		}
	}
	nothing := *q
	nothing.Count, nothing.BlockFor = 0, 0
	_, err = p.Take(ctx, &nothing)
	return store.Outcome{}, err
}

// forget frees an idempotency key whose admission need not be remembered any longer or
// whose reservation has expired. An expired reservation is given back first, which also
// frees the key.
func (p Store) forget(ctx context.Context, q *store.Query, a *store.Admission) error {
	before, err := p.readBefore(ctx, q, a)
	if err != nil || before == nil || !before.free() {
		return err
	}
	if before.State == store.Open {
		e := store.Ending{ReservationID: before.ReservationID, State: store.Expired, Now: q.Now, Commit: q.Commit, LockWait: q.LockWait}
		if _, err := p.settle(ctx, &e); err != nil && !errors.Is(err, store.ErrNoReservation) {
			return err
		}
	}
	return p.exec(ctx, q.LockWait, func(tx db.DBTX) error {
		_, err := statement.Queries.ReservationForget(ctx, tx, db.ReservationForgetParams{
			Policy: q.Policy, Key: q.Key, Algorithm: string(q.Algorithm), IdempotencyKey: a.Idempotency, NowUs: q.Now, LockTimeout: statement.WaitText(q.LockWait),
		})
		return err
	})
}

// before is an earlier admission under an idempotency key.
type before struct {
	store.Reservation
	forgotten bool // it need not be remembered any longer
	overdue   bool // it is an open reservation that has expired
}

// free reports whether the idempotency key may be used again.
func (b *before) free() bool { return b.forgotten || b.overdue }

// reservationOf returns nil for nil.
func reservationOf(b *before) *store.Reservation {
	if b == nil {
		return nil
	}
	return &b.Reservation
}

func (p Store) readBefore(ctx context.Context, q *store.Query, a *store.Admission) (b *before, err error) {
	err = p.exec(ctx, 0, func(tx db.DBTX) (err error) {
		b, err = readBefore(ctx, tx, q, a)
		return err
	})
	return b, err
}

// readBefore returns nil if nothing was admitted.
func readBefore(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (*before, error) {
	row, err := statement.Queries.ReservationByIdempotency(ctx, tx, db.ReservationByIdempotencyParams{
		Policy: q.Policy, Key: q.Key, Algorithm: string(q.Algorithm), IdempotencyKey: a.Idempotency, NowUs: q.Now,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	r := q.Rules
	r.Burst, r.Capacity, r.Leak, r.Tick, r.Period = row.Burst, row.Capacity, row.Leak, row.TickUs, row.PeriodUs
	return &before{forgotten: row.Forgotten, overdue: row.Overdue, Reservation: store.Reservation{
		ReservationID: store.ReservationID{Algorithm: q.Algorithm, Policy: q.Policy, Key: q.Key, ID: row.ID},
		Rules:         r, Limit: row.LimitUnits, State: store.State(row.State),
		Reserved: row.Reserved, Level: row.Level, EndsAt: row.EndsAtUs, CountedAt: row.CountedAtUs,
		CreatedAt: row.CreatedAtUs, ExpiresAt: row.ExpiresAtUs,
	}}, err
}

// confirm returns once an earlier admission is as durable as q requires. The commit of a
// caller's transaction does that by itself.
func (p Store) confirm(ctx context.Context, q *store.Query, id string) error {
	if p.tx || q.Commit == store.Relaxed {
		return nil
	}
	return p.exec(ctx, q.LockWait, func(tx db.DBTX) error {
		_, err := statement.Queries.ReservationConfirm(ctx, tx, db.ReservationConfirmParams{
			Policy: q.Policy, Key: q.Key, ID: id, Commit: string(q.Commit), LockTimeout: statement.WaitText(q.LockWait),
		})
		return err
	})
}

// Settle ends a reservation. If a row stayed locked, a second statement finds out whether
// that is the reservation's.
func (p Store) Settle(ctx context.Context, e *store.Ending) (store.Ended, error) {
	s, err := p.settle(ctx, e)
	if err == store.ErrLocked && p.reservationLocked(ctx, e) {
		err = store.ErrReservationLocked
	}
	return s, err
}

func (p Store) settle(ctx context.Context, e *store.Ending) (s store.Ended, err error) {
	found := false
	err = p.runner.Do(ctx, func(tx db.DBTX) error {
		ended, err := statement.Of(e.Algorithm).Settle(ctx, tx, e)
		if err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
			return asLocked(e.LockWait, err)
		}
		found, s = true, ended
		return nil
	})
	if err == nil && !found {
		return s, fmt.Errorf("%w: %s", store.ErrNoReservation, store.Quote(e.Public()))
	}
	return s, exec.Translate(err, p.tx)
}

// reservationLocked reports whether another transaction has locked the reservation. It is
// false if that cannot be read.
func (p Store) reservationLocked(ctx context.Context, e *store.Ending) (locked bool) {
	_ = p.exec(ctx, 0, func(tx db.DBTX) (err error) {
		locked, err = statement.Queries.ReservationLocked(ctx, tx, db.ReservationLockedParams{Policy: e.Policy, Key: e.Key, ID: e.ID})
		return err
	})
	return locked
}

// Due lists the key's open reservations that have expired.
func (p Store) Due(ctx context.Context, q *store.Query) (ids []string, err error) {
	err = p.exec(ctx, 0, func(tx db.DBTX) (err error) {
		ids, err = statement.Queries.ReservationsDue(ctx, tx, db.ReservationsDueParams{
			Policy: q.Policy, Key: q.Key, Algorithm: string(q.Algorithm), NowUs: q.Now, MaxRows: store.MaxDue,
		})
		return err
	})
	return ids, err
}

// NextDue returns the time until the next open reservation expires.
func (p Store) NextDue(ctx context.Context) (wait int64, err error) {
	err = p.exec(ctx, 0, func(tx db.DBTX) error {
		row, err := statement.Queries.ReservationsNext(ctx, tx)
		wait = store.NoneDue
		if row.ExpiresAtUs != store.NoneDue {
			wait = row.ExpiresAtUs - row.NowUs
		}
		return err
	})
	return wait, err
}
