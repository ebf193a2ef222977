package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// takeUnlessAdmitted takes several keys, unless some of them were admitted before under the
// idempotency key. The first look locks nothing. A second one, with the rows locked, comes before
// a denial, and in the caller's transaction before anything is taken: the same request, sent
// twice, may have been admitted while this one waited. If both grant, the second fails by the
// unique index.
func (p Store) takeUnlessAdmitted(ctx context.Context, op *store.Op) (allowed bool, err error) {
	for try := 1; ; try++ {
		if op.Once() {
			if before, err := p.before(ctx, op.Groups); before || err != nil {
				return before, err
			}
		}
		allowed, err = p.takeAllOnce(ctx, op)
		switch duplicate := exec.IsDuplicate(err); {
		case duplicate && p.tx:
			return false, fmt.Errorf("%w: %w", store.ErrRetryTx, err)
		case !duplicate && err != exec.ErrAdmitted:
			return allowed, err
		case try == exec.MaxTries:
			return false, fmt.Errorf("%w: admissions under the idempotency key of %d requests keep changing; try again", store.ErrUnavailable, len(op.Groups))
		}
	}
}

// before sets the outcomes of groups that were admitted before, and reports whether any was. It
// forgets admissions that may be forgotten. If it finds only some it looks again: all may have
// been committed between two of its statements.
func (p Store) before(ctx context.Context, groups []*store.Group) (any bool, err error) {
	var found []*before
	for try := 0; try == 0 || try == 1 && err == nil && slices.Contains(found, nil) && !slices.Equal(found, make([]*before, len(groups))); try++ {
		err = p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) (err error) {
			found, err = p.look(ctx, tx, groups)
			return err
		})
	}
	for i, b := range found {
		q := &groups[i].Query
		switch groups[i].Outcome = (store.Outcome{}); {
		case err != nil || b == nil:
		case b.free():
			if q.Possible() {
				err = p.forget(ctx, q, groups[i].Admission)
			}
		default:
			groups[i].Outcome.Before, any = &b.Reservation, true
			err = p.confirm(ctx, q, b.ID)
		}
	}
	return any && err == nil, err
}

// look reads the admissions of groups under their idempotency key; nil for none.
func (p Store) look(ctx context.Context, tx db.DBTX, groups []*store.Group) ([]*before, error) {
	found, calls := make([]*before, len(groups)), make([]exec.Call, len(groups))
	for i, g := range groups {
		calls[i] = func(tx db.DBTX) (err error) {
			found[i], err = readBefore(ctx, p.at(tx, g.Key), &g.Query, g.Admission)
			return err
		}
	}
	return found, exec.Together(ctx, tx, calls)
}

// unlessAdmitted returns exec.ErrAdmitted if a group was admitted before that this transaction has
// not admitted. The rows are locked.
func (p Store) unlessAdmitted(ctx context.Context, tx db.DBTX, groups []*store.Group) error {
	if !(&store.Op{Groups: groups}).Once() {
		return nil
	}
	found, err := p.look(ctx, tx, slices.DeleteFunc(slices.Clone(groups), (*store.Group).Fits))
	for _, b := range found {
		if err == nil && b != nil && !b.free() { // the first look forgets those that are free, but for what is never granted
			err = exec.ErrAdmitted
		}
	}
	return err
}

// admit returns the call of a Reserve that sets the group's outcome. For a router it is two
// statements.
func (p Store) admit(ctx context.Context, g *store.Group, op *store.Op) exec.Call {
	if p.routed {
		return func(tx db.DBTX) error {
			if err := p.one(ctx, g, op, func(o store.Outcome) { g.Outcome = o })(tx); err != nil || !g.Fits() {
				return err
			}
			return statement.Queries.ReservationAdd(ctx, tx, added(&g.Query, g.Admission, &g.Outcome))
		}
	}
	op.Kind, op.Admission = store.Reserve, g.Admission
	take := p.one(ctx, g, op, func(o store.Outcome) { g.Outcome = o })
	return func(tx db.DBTX) error {
		err := take(tx)
		switch {
		case !errors.Is(err, pgx.ErrNoRows):
			return err
		case g.Calendar != nil:
			return exec.ErrOtherPeriod
		}
		return exec.ErrAdmitted
	}
}

// settleAll ends several reservations, or none. It locks all of them before the row of any key.
func (p Store) settleAll(ctx context.Context, op *store.Op) error {
	if p.routed {
		if err := oneKey(op.Groups); err != nil {
			return err
		}
		p.runner = exec.OneByOne(p.runner)
	}
	var refused error
	err := p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error {
		holds, settles := make([]exec.Call, len(op.Ends)), make([]exec.Call, len(op.Ends))
		for i, one := range op.Ends {
			one.LockWait = op.LockWait
			holds[i] = func(tx db.DBTX) (err error) {
				one.Ended, err = hold(ctx, p.at(tx, one.Key), one)
				return err
			}
			if settles[i] = p.send(ctx, one); p.routed {
				settles[i] = func(tx db.DBTX) error { return p.end(ctx, tx, one) }
			}
		}
		if err := exec.Together(ctx, tx, holds); err != nil {
			return statement.AsLocked(ctx, op.LockWait, err)
		}
		for _, one := range op.Ends {
			if refused = found(one, nil); refused == nil {
				refused = one.Conflict(store.Quote(one.Reservation().Public()))
			}
			if refused != nil {
				return exec.ErrRolledBack
			}
		}
		return statement.AsLocked(ctx, op.LockWait, exec.Together(ctx, tx, settles))
	})
	if err == exec.ErrRolledBack {
		return refused
	}
	return exec.Translate(err, p.tx)
}
