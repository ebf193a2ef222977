// Package statement calls the generated statements. It converts queries into their
// parameters and their rows into outcomes.
package statement

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Take grants as many steps as fit.
func (t *Table) Take(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
	s := t.take
	if q.Calendar != nil {
		s = t.calendarTake
	}
	return t.changed(ctx, tx, s, of(q))
}

// Charge adds units up to the burst.
func (t *Table) Charge(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
	s := t.charge
	if q.Calendar != nil {
		s = t.calendarCharge
	}
	return t.changed(ctx, tx, s, of(q))
}

// Refund gives units back.
func (t *Table) Refund(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
	return t.changed(ctx, tx, t.refund, of(q))
}

// Undo gives back what is left of units that were counted in g.
func (t *Table) Undo(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
	w := of(q)
	w.grant = g
	return t.changed(ctx, tx, t.undo, w)
}

// Reserve takes and stores the admission.
func (t *Table) Reserve(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
	w := of(q)
	w.admission = a
	return t.changed(ctx, tx, t.reserve, w)
}

// otherPeriod is granted if the clock was in neither of a calendar's windows and the key
// had no row.
const otherPeriod = -2

// changed returns the outcome of a statement that takes units or gives units back. The
// error is ErrOtherPeriod if the clock was in neither of a calendar's windows.
func (t *Table) changed(ctx context.Context, tx db.DBTX, s *statement, w *wire) (store.Outcome, error) {
	defer w.free()
	err := s.run(ctx, tx, w)
	if s == t.calendarTake || s == t.calendarCharge {
		if errors.Is(err, pgx.ErrNoRows) || err == nil && w.fields.granted == otherPeriod {
			err = exec.ErrOtherPeriod
		}
	}
	if err != nil {
		return store.Outcome{}, err
	}
	return w.fields.outcome(t.view(&w.views, 1, &w.fields, w.query)), nil
}

// Get reads the key's state.
func (t *Table) Get(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
	u, err := t.read(ctx, tx, t.get, q)
	return u.Outcome, err
}

// Usage reads the key's state and its open reservations.
func (t *Table) Usage(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
	return t.read(ctx, tx, t.usage, q)
}

func (t *Table) read(ctx context.Context, tx db.DBTX, s *statement, q *store.Query) (store.Usage, error) {
	w := of(q)
	defer w.free()
	if err := s.run(ctx, tx, w); err != nil {
		return store.Usage{}, err
	}
	f := &w.fields
	return store.Usage{Outcome: f.continued(q, t.state(f)), Reservations: int(f.reservations), Reserved: f.reserved}, nil
}

// Settle changes a reservation. It returns pgx.ErrNoRows if there is none.
func (t *Table) Settle(ctx context.Context, tx db.DBTX, op *store.Op) (store.Ended, error) {
	w := of(&op.Query)
	defer w.free()
	w.admission = &store.Admission{ID: op.ID, State: op.State}
	if err := t.settle.run(ctx, tx, w); err != nil {
		return store.Ended{}, err
	}
	return w.fields.ended(op.Reservation()), nil
}

// Block blocks the key for the query's BlockFor.
func (t *Table) Block(ctx context.Context, tx db.DBTX, q *store.Query) error {
	w := of(q)
	defer w.free()
	return t.block.run(ctx, tx, w)
}

// Unblock lifts the block that ends at until; any block if until is 0.
func (t *Table) Unblock(ctx context.Context, tx db.DBTX, q *store.Query, until int64) error {
	w := of(q)
	defer w.free()
	w.until = until
	return t.unblock.run(ctx, tx, w)
}

// Reset deletes the key's row. It returns the number of rows deleted.
func (t *Table) Reset(ctx context.Context, tx db.DBTX, q *store.Query) (int64, error) {
	w := of(q)
	defer w.free()
	err := t.reset.run(ctx, tx, w)
	return w.fields.deleted, err
}

// Locked marks the rows that other transactions have locked.
func (t *Table) Locked(ctx context.Context, tx db.DBTX, rows []*store.Row) ([]bool, error) {
	locked := make([]bool, len(rows))
	w := ofRows(rows, nil)
	defer w.free()
	w.found = func(i int) { locked[i] = true }
	return locked, t.locked.run(ctx, tx, w)
}

// TakeMany runs one statement for rows of one algorithm and leaves the outcomes in
// them. now is the caller's clock, nil for the database's.
func (t *Table) TakeMany(ctx context.Context, tx db.DBTX, rows []*store.Row, now *int64) error {
	w := ofRows(rows, now)
	defer w.free()
	w.view = t.view
	if err := t.takeMany.run(ctx, tx, w); err != nil {
		for _, r := range rows {
			r.Outcome = store.Outcome{} // rows that were read before an error are void
		}
		return err
	}
	return allDecided(rows)
}

// TakeManyLater returns TakeMany as a function that may be called more than once: a
// pipeline keeps the parameters from the first call until it is sent.
func (t *Table) TakeManyLater(rows []*store.Row, now *int64) func(context.Context, db.DBTX) error {
	return t.later(t.takeMany, rows, now)
}

// TakeAllLater is TakeManyLater, but of a statement that fails unless all rows are granted.
func (t *Table) TakeAllLater(rows []*store.Row, now *int64) func(context.Context, db.DBTX) error {
	return t.later(t.takeAll, rows, now)
}

func (t *Table) later(s *statement, rows []*store.Row, now *int64) func(context.Context, db.DBTX) error {
	w := ofRows(rows, now)
	w.view = t.view
	f := s.fill(w)
	return func(ctx context.Context, tx db.DBTX) error {
		if err := s.through(ctx, tx, f, w); err != nil {
			return err
		}
		return allDecided(rows)
	}
}

// allDecided checks that each row has its outcome.
func allDecided(rows []*store.Row) error {
	for _, r := range rows {
		if r.Outcome.Decided {
			continue
		}
		if r.Query.Calendar != nil {
			return exec.ErrOtherPeriod
		}
		return fmt.Errorf("no row returned for policy %s and key %s", store.Quote(r.Query.Policy), store.Quote(r.Query.Key))
	}
	return nil
}

// Binaries returns the statements that are sent in binary, each with the fields that its
// columns are read into.
func Binaries() map[*exec.Binary][]string {
	all := map[*exec.Binary][]string{}
	for _, t := range tables {
		for _, s := range []*statement{t.take, t.takeMany, t.calendarTake} {
			if s == nil {
				continue
			}
			for _, c := range s.columns {
				all[s.binary] = append(all[s.binary], c.name)
			}
		}
	}
	return all
}

// WaitText returns a LockWait as PostgreSQL's lock_timeout, or "" for none.
func WaitText(wait time.Duration) string {
	switch wait {
	case 0:
		return ""
	case shortWait:
		return shortWaitText
	}
	return milliseconds(wait)
}

// shortWait is the usual LockWait, whose text is made once.
const shortWait = 10 * time.Millisecond

var shortWaitText = milliseconds(shortWait)

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }
