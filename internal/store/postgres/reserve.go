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

// reserve is one statement. If an admission under the same idempotency key exists, a
// second statement reads it, and a third confirms it. If that admission may be forgotten,
// it is forgotten first. A denial under an idempotency key also needs a second statement:
// see attempt.
func (p Store) reserve(ctx context.Context, op *store.Op) error {
	o, err := p.reserveOnce(ctx, &op.Query, op.Admission)
	if err == nil && o.Before != nil {
		err = p.confirm(ctx, &op.Query, o.Before.ID)
	}
	if err == nil {
		op.Outcome = o
	}
	return err
}

func (p Store) reserveOnce(ctx context.Context, q *store.Query, a *store.Admission) (store.Outcome, error) {
	if !q.Possible() { // it may still have been admitted before
		get := store.Op{Kind: store.Get, Query: *q}
		if err := p.Do(ctx, &get); err != nil { // first: an admission meanwhile is the answer
			return store.Outcome{}, err
		}
		before, err := p.readBefore(ctx, q, a)
		if err != nil || before != nil && !before.free() {
			return store.Outcome{Before: reservationOf(before)}, err
		}
		return get.Outcome, nil
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
	if p.routed {
		return p.attemptBy(ctx, exec.Transaction, q, a)
	}
	if q.BlockFor == 0 || a.Idempotency == "" || p.tx {
		return p.attemptBy(ctx, exec.Statement, q, a)
	}
	unblocked := *q
	unblocked.BlockFor = 0
	o, overdue, err = p.attemptBy(ctx, exec.Statement, &unblocked, a)
	if err != nil || overdue || !denied(&o) || o.Blocked {
		return o, overdue, err
	}
	return p.attemptBy(ctx, exec.Transaction, q, a)
}

// denied reports whether a Reserve was decided and denied.
func denied(o *store.Outcome) bool { return o.Decided && o.Granted == 0 }

// attemptBy is attempt in a mode. It decides again if the database's clock was in another
// period of a calendar.
func (p Store) attemptBy(ctx context.Context, m exec.Mode, q *store.Query, a *store.Admission) (o store.Outcome, overdue bool, err error) {
	for try := 1; ; try++ {
		p.setEdges(q, q.Now)
		err = p.runner.Run(ctx, m, func(tx db.DBTX) (err error) {
			o, overdue, err = p.reserveBy(ctx, tx, q, a)
			return statement.AsLocked(ctx, q.LockWait, err)
		})
		if err == exec.ErrRolledBack {
			err = nil
		}
		if err != exec.ErrOtherPeriod {
			return o, overdue, exec.Translate(err, p.tx)
		}
		if err = p.compare(ctx, try, q); err != nil {
			return o, false, err
		}
	}
}

// reserveBy sends the statement over tx, and looks for an earlier admission if it has to.
func (p Store) reserveBy(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (o store.Outcome, overdue bool, err error) {
	if p.routed {
		return p.reserveRouted(ctx, tx, q, a)
	}
	op := store.Op{Kind: store.Reserve, Query: *q, Admission: a}
	err = p.send(ctx, &op)(tx)
	o = op.Outcome
	undecided := errors.Is(err, pgx.ErrNoRows)
	switch {
	case err != nil && !undecided:
		return o, false, err
	case !undecided && (!denied(&o) || p.tx || a.Idempotency == ""):
		return o, false, nil
	}
	tx = p.at(tx, q.Key)
	var b *before
	if err = nil; a.Idempotency != "" {
		b, err = readBefore(ctx, tx, q, a) // nil: gone between the two statements
	}
	switch {
	case err != nil || b != nil:
		return b.instead(err)
	case undecided && q.Calendar != nil:
		return store.Outcome{}, false, exec.ErrOtherPeriod
	case undecided: // what was there is gone
		return store.Outcome{}, false, nil
	}
	return o, false, nil
}

// instead returns what reserveBy returns because of b, or of an error: what the transaction
// did is rolled back, with a block that it began.
func (b *before) instead(err error) (o store.Outcome, overdue bool, _ error) {
	switch {
	case err != nil:
		return store.Outcome{}, false, err
	case b.free():
		return store.Outcome{}, true, exec.ErrRolledBack
	}
	return store.Outcome{Before: &b.Reservation}, false, exec.ErrRolledBack
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
	nothing := store.Op{Kind: store.Take, Query: *q}
	nothing.Count, nothing.BlockFor = 0, 0
	return store.Outcome{}, p.Do(ctx, &nothing)
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
		end := store.Op{Kind: store.Settle, Query: *q, ID: before.ID, State: store.Expired}
		end.Units = 0
		if err := p.settleOnce(ctx, &end); err != nil && !errors.Is(err, store.ErrNoReservation) {
			return err
		}
	}
	return p.exec(ctx, q.LockWait, q.Key, func(tx db.DBTX) error {
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
	err = p.exec(ctx, 0, q.Key, func(tx db.DBTX) (err error) {
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
	return p.exec(ctx, q.LockWait, q.Key, func(tx db.DBTX) error {
		_, err := statement.Queries.ReservationConfirm(ctx, tx, db.ReservationConfirmParams{
			Policy: q.Policy, Key: q.Key, ID: id, Commit: string(q.Commit), LockTimeout: statement.WaitText(q.LockWait),
		})
		return err
	})
}

// settle ends a reservation. If a row stayed locked, a second statement finds out whether
// that is the reservation's.
func (p Store) settle(ctx context.Context, op *store.Op) error {
	err := p.settleOnce(ctx, op)
	if err == store.ErrLocked && p.reservationLocked(ctx, op) {
		err = store.ErrReservationLocked
	}
	return err
}

func (p Store) settleOnce(ctx context.Context, op *store.Op) error {
	if p.routed {
		return p.settleRouted(ctx, op)
	}
	err := p.exec(ctx, op.LockWait, op.Key, func(tx db.DBTX) error {
		op.Ended = nil
		err := statement.Call{Context: ctx, Op: op}.Send(tx)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return found(op, err)
}

// found returns err, or an ErrNoReservation if a Settle found none.
func found(op *store.Op, err error) error {
	if err == nil && op.Ended == nil {
		return fmt.Errorf("%w: %s", store.ErrNoReservation, store.Quote(op.Reservation().Public()))
	}
	return err
}

// reservationLocked reports whether another transaction has locked the reservation. It is
// false if that cannot be read.
func (p Store) reservationLocked(ctx context.Context, op *store.Op) (locked bool) {
	_ = p.exec(ctx, 0, op.Key, func(tx db.DBTX) (err error) {
		locked, err = statement.Queries.ReservationLocked(ctx, tx, db.ReservationLockedParams{Policy: op.Policy, Key: op.Key, ID: op.ID})
		return err
	})
	return locked
}
