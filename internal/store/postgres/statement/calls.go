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
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Call is an Op for one key that is sent with a context.
type Call struct {
	Context context.Context
	Op      *store.Op
}

// otherPeriod is granted if the clock was in neither of a calendar's windows and the key
// had no row.
const otherPeriod = -2

// Send sends the statement and sets the Op's outcome. The error is exec.ErrOtherPeriod if the
// clock was in neither of a calendar's windows, store.ErrLocked if the row was locked for
// longer than the Op's LockWait, and pgx.ErrNoRows if a Settle finds no reservation or a
// Reserve decides nothing.
func (c Call) Send(tx db.DBTX) error {
	op, q, t := c.Op, &c.Op.Query, tables[c.Op.Algorithm]
	s := t.kinds[op.Kind]
	calendar := q.Calendar != nil && (op.Kind == store.Take || op.Kind == store.Charge)
	if calendar {
		s = t.calendar[op.Kind]
	}
	w := of(op)
	defer w.free()
	err, f := s.run(c.Context, tx, w), &w.fields
	switch {
	case calendar && (errors.Is(err, pgx.ErrNoRows) || err == nil && f.granted == otherPeriod):
		return exec.ErrOtherPeriod
	case err != nil:
		return AsLocked(q.LockWait, err)
	}
	switch op.Kind {
	case store.Block, store.Unblock:
	case store.Reset, store.Leave:
		op.Allowed = f.deleted > 0
	case store.Settle:
		e := f.ended(op.Reservation())
		op.Ended = &e
	case store.Get, store.GetUsage:
		op.Outcome = f.continued(q, t.state(f))
		op.Usage = store.Usage{Outcome: op.Outcome, Reservations: int(f.reservations), Reserved: f.reserved}
	default:
		op.Outcome = f.outcome(t.view(&w.views, 1, f, q))
		if q.Now != nil {
			op.Outcome.Now = *q.Now
		}
	}
	return nil
}

// AsLocked returns ErrLocked for a row that was locked for longer than a LockWait.
// Retrying the statement would not help.
func AsLocked(wait time.Duration, err error) error {
	if err != nil && wait > 0 && exec.IsLockTimeout(err) {
		return store.ErrLocked
	}
	return err
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
		for _, s := range []*statement{t.kinds[store.Take], t.takeMany, t.calendar[store.Take]} {
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
