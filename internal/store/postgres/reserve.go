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

// reserving is a Reserve on its way, or a Grant that is remembered.
type reserving struct {
	Store
	kind      store.Kind
	lot       *store.Granting // of a Grant
	query     *store.Query
	admission *store.Admission
	outcome   store.Outcome
	overdue   bool // nothing was decided: an admission under the idempotency key may be forgotten
}

// reserve is one statement. If an admission under the same idempotency key exists, a
// second statement reads it, and a third confirms it. If that admission may be forgotten,
// it is forgotten first. A denial under an idempotency key also needs a second statement.
//
// A statement looks for that admission before it waits for the key's row. Meanwhile the
// same request, sent twice, may be admitted and take the room. So after a denial a second
// statement looks again.
//
// A denial that begins a block is decided once more, in a transaction that ends after the
// second look: no other request meets a block of a denial that is none. In the caller's
// transaction prepare has locked the row first.
func (p Store) reserve(ctx context.Context, op *store.Op) error {
	r, m := &reserving{Store: p, kind: op.Kind, lot: op.Lot, query: &op.Query, admission: op.Admission}, exec.Statement
	if p.routed {
		m = exec.Transaction
	}
	blocks := op.BlockFor != 0 && op.Admission.Idempotency != "" && !p.tx && !p.routed
	decided, err := r.early(ctx)
	for try := 0; err == nil && !decided; try++ {
		if try == exec.MaxTries {
			return fmt.Errorf("%w: admissions under the idempotency key %s keep changing; try again", store.ErrUnavailable, store.Quote(op.Admission.Idempotency))
		}
		if blocks {
			r.query = new(op.Query)
			r.query.BlockFor = 0
		}
		err, r.query = r.attempt(ctx, m), &op.Query
		if blocks && err == nil && !r.overdue && denied(&r.outcome) && !r.outcome.Blocked {
			err = r.attempt(ctx, exec.Transaction)
		}
		switch duplicate := exec.IsDuplicate(err); {
		case duplicate && p.tx:
			return fmt.Errorf("%w: %w", store.ErrRetryTx, err)
		case duplicate, err == nil && r.overdue:
			err = p.forget(ctx, &op.Query, op.Admission)
		default: // or what was there is gone
			decided = r.outcome.Before != nil || r.outcome.Decided
		}
	}
	if err == nil && r.outcome.Before != nil {
		err = p.confirm(ctx, &op.Query, r.outcome.Before.ID)
	}
	if err == nil {
		op.Outcome = r.outcome
	}
	return err
}

// early answers what fits no limit, unless it was admitted before, and prepares for the caller's
// transaction.
func (r *reserving) early(ctx context.Context) (decided bool, err error) {
	q := r.query
	if !q.Possible() {
		get := store.Op{Kind: store.Get, Query: *q}
		if err := r.Do(ctx, &get); err != nil { // first: an admission meanwhile is the answer
			return false, err
		}
		before, err := r.readBefore(ctx, q, r.admission)
		if r.outcome = get.Outcome; before != nil && !before.free() {
			r.outcome = store.Outcome{Before: &before.Reservation}
		}
		return true, err
	}
	if r.admission.Idempotency != "" && r.tx {
		r.outcome, err = r.prepare(ctx, q, r.admission)
	}
	return r.outcome.Before != nil, err
}

// denied reports whether a Reserve was decided and denied.
func denied(o *store.Outcome) bool { return o.Decided && o.Granted == 0 }

// attempt decides once in a mode, and looks for an earlier admission if it has to. It decides
// again if the database's clock was in another period of a calendar.
func (r *reserving) attempt(ctx context.Context, m exec.Mode) (err error) {
	q, a := r.query, r.admission
	for try := 1; ; try++ {
		r.setEdges(q, q.Now)
		err = r.runner.Run(ctx, m, func(tx db.DBTX) (err error) {
			defer func() { err = statement.AsLocked(ctx, q.LockWait, err) }()
			if r.outcome, r.overdue = (store.Outcome{}), false; r.routed && r.kind == store.Grant {
				return errGrantOnce
			} else if r.routed {
				r.outcome, r.overdue, err = r.reserveRouted(ctx, tx, q, a)
				return err
			}
			tx = r.at(tx, q.Key)
			op := store.Op{Kind: r.kind, Query: *q, Admission: a, Lot: r.lot}
			err = statement.Call{Context: ctx, Op: &op}.Send(tx)
			undecided := errors.Is(err, pgx.ErrNoRows)
			if err != nil && !undecided {
				return err
			}
			if r.outcome = op.Outcome; a.Idempotency != "" && (undecided || !r.tx && denied(&r.outcome)) {
				if b, err := readBefore(ctx, tx, q, a); err != nil || b != nil { // nil: gone between the two statements
					r.outcome, r.overdue, err = b.instead(err)
					return err
				}
			}
			if undecided { // what was there is gone
				r.outcome = store.Outcome{}
				if q.Calendar != nil {
					return exec.ErrOtherPeriod
				}
			}
			return nil
		})
		if err == exec.ErrRolledBack {
			err = nil
		}
		if err != exec.ErrOtherPeriod {
			return exec.Translate(err, r.tx)
		}
		if err = r.compare(ctx, try, q); err != nil {
			return err
		}
	}
}

// instead returns the outcome because of b, or of an error: what the transaction did is rolled
// back, with a block that it began.
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
		Reserved: row.Reserved, Requested: row.Requested, Level: row.Level, EndsAt: row.EndsAtUs, CountedAt: row.CountedAtUs,
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
