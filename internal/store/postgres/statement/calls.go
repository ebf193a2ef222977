// Package statement calls the generated statements. It converts queries into their
// parameters and their rows into outcomes.
package statement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Queries are the generated statements.
var Queries = db.New()

// Table has the statements of one algorithm. A LeakyBucketQueue has no Refund, Undo or
// Settle, a Balance no Adjust, and it alone a Grant.
type Table struct {
	view  viewer
	state func(*fields) algorithm.State

	kinds                     [store.Leave + 1]lazy  // by the kind of an Op for one key
	calendar                  [store.Charge + 1]lazy // instead, of a query with a calendar
	marked                    [store.Undo + 1]lazy   // instead, of a query that Records
	takeMany, takeAll, locked lazy
	adjust, deletes           lazy    // parts of a Settle and a Reset for a router of shards
	grantOnce                 lazy    // instead of a Grant, with an Admission
	grants                    [2]lazy // the same two, of a query that Records
}

// What some statements mean by a name.
var (
	charged   = func() names { return names{"Capacity": float(func(w *wire) float64 { return w.query.Burst })} }
	unblocked = func() names { return names{"UntilUs": integer(func(w *wire) int64 { return w.op.Until })} }
	ended     = func() names {
		return names{"ID": text(func(w *wire) string { return w.op.ID }), "State": text(func(w *wire) string { return string(w.op.State) })}
	}
	adjusted = func() names {
		return names{
			"Units":       float(func(w *wire) float64 { return w.op.Ended.Units }),
			"Actual":      float(func(w *wire) float64 { return w.op.Units }),
			"Capacity":    float(func(w *wire) float64 { return w.op.Ended.Capacity }),
			"Leak":        float(func(w *wire) float64 { return w.op.Ended.Leak }),
			"TickUs":      integer(func(w *wire) int64 { return w.op.Ended.Tick }),
			"PeriodUs":    integer(func(w *wire) int64 { return w.op.Ended.Period }),
			"EndsAtUs":    integer(func(w *wire) int64 { return w.op.Ended.EndsAt }),
			"CountedAtUs": integer(func(w *wire) int64 { return w.op.Ended.CountedAt }),
		}
	}
	ofEach = func() names {
		return names{"Policies": texts(perRow, func(r *store.Row) string { return r.Query.Policy })}
	}
)

// Of returns the statements of an algorithm.
func Of(a algorithm.Name) *Table { return tables[a]() }

var tables = map[algorithm.Name]func() *Table{
	algorithm.LeakyBucket: sync.OnceValue(func() *Table {
		return &Table{
			view: leakyView, state: leakyState,
			takeMany: many(Queries.LeakyBucketTakeMany), takeAll: many(Queries.LeakyBucketTakeAll), locked: many(Queries.LeakyBucketLocked, ofEach),
			adjust: one(Queries.LeakyBucketAdjust, adjusted), deletes: deletes(Queries.LeakyBucketDelete),
			marked: [store.Undo + 1]lazy{store.Take: one(Queries.LeakyBucketTakeMarked), store.Reserve: one(Queries.LeakyBucketReserveMarked), store.Charge: one(Queries.LeakyBucketChargeMarked, charged),
				store.Refund: one(Queries.LeakyBucketRefundMarked), store.Undo: one(Queries.LeakyBucketUndoMarked)},
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.LeakyBucketTake), store.Reserve: one(Queries.LeakyBucketReserve), store.Charge: one(Queries.LeakyBucketCharge, charged),
				store.Get: one(Queries.LeakyBucketGet), store.GetUsage: one(Queries.LeakyBucketUsage),
				store.Refund: one(Queries.LeakyBucketRefund), store.Undo: one(Queries.LeakyBucketUndo), store.Settle: one(Queries.LeakyBucketSettle, ended),
				store.Block: none(Queries.LeakyBucketBlock), store.Unblock: none(Queries.LeakyBucketUnblock, unblocked), store.Reset: deletes(Queries.LeakyBucketReset),
				store.Present: number(Queries.LeakyBucketPresent), store.Insert: deletes(Queries.LeakyBucketInsert),
			},
		}
	}),
	algorithm.LeakyBucketQueue: sync.OnceValue(func() *Table {
		return &Table{
			view: bucketView, state: bucketState,
			takeMany: many(Queries.LeakyBucketQueueTakeMany), takeAll: many(Queries.LeakyBucketQueueTakeAll), locked: many(Queries.LeakyBucketQueueLocked, ofEach),
			deletes: deletes(Queries.LeakyBucketQueueDelete),
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.LeakyBucketQueueTake), store.Reserve: one(Queries.LeakyBucketQueueReserve), store.Charge: one(Queries.LeakyBucketQueueCharge, charged),
				store.Get: one(Queries.LeakyBucketQueueGet), store.GetUsage: one(Queries.LeakyBucketQueueUsage),
				store.Leave: deletes(Queries.LeakyBucketQueueLeave),
				store.Block: none(Queries.LeakyBucketQueueBlock), store.Unblock: none(Queries.LeakyBucketQueueUnblock, unblocked), store.Reset: deletes(Queries.LeakyBucketQueueReset),
				store.Present: number(Queries.LeakyBucketQueuePresent), store.Insert: deletes(Queries.LeakyBucketQueueInsert),
			},
		}
	}),
	algorithm.TokenBucket: sync.OnceValue(func() *Table {
		return &Table{
			view: bucketView, state: bucketState,
			takeMany: many(Queries.TokenBucketTakeMany), takeAll: many(Queries.TokenBucketTakeAll), locked: many(Queries.TokenBucketLocked, ofEach),
			adjust: one(Queries.TokenBucketAdjust, adjusted), deletes: deletes(Queries.TokenBucketDelete),
			marked: [store.Undo + 1]lazy{store.Take: one(Queries.TokenBucketTakeMarked), store.Reserve: one(Queries.TokenBucketReserveMarked), store.Charge: one(Queries.TokenBucketChargeMarked, charged),
				store.Refund: one(Queries.TokenBucketRefundMarked), store.Undo: one(Queries.TokenBucketUndoMarked)},
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.TokenBucketTake), store.Reserve: one(Queries.TokenBucketReserve), store.Charge: one(Queries.TokenBucketCharge, charged),
				store.Get: one(Queries.TokenBucketGet), store.GetUsage: one(Queries.TokenBucketUsage),
				store.Refund: one(Queries.TokenBucketRefund), store.Undo: one(Queries.TokenBucketUndo), store.Settle: one(Queries.TokenBucketSettle, ended),
				store.Block: none(Queries.TokenBucketBlock), store.Unblock: none(Queries.TokenBucketUnblock, unblocked), store.Reset: deletes(Queries.TokenBucketReset),
				store.Present: number(Queries.TokenBucketPresent), store.Insert: deletes(Queries.TokenBucketInsert),
			},
		}
	}),
	algorithm.FixedWindow: sync.OnceValue(func() *Table {
		return &Table{
			view: windowView, state: windowState,
			takeMany: many(Queries.FixedWindowTakeMany), takeAll: many(Queries.FixedWindowTakeAll), locked: many(Queries.FixedWindowLocked, ofEach),
			adjust: one(Queries.FixedWindowAdjust, adjusted), deletes: deletes(Queries.FixedWindowDelete),
			marked: [store.Undo + 1]lazy{store.Take: one(Queries.FixedWindowTakeMarked), store.Reserve: one(Queries.FixedWindowReserveMarked), store.Charge: one(Queries.FixedWindowChargeMarked, charged),
				store.Refund: one(Queries.FixedWindowRefundMarked), store.Undo: one(Queries.FixedWindowUndoMarked)},
			calendar: [store.Charge + 1]lazy{
				store.Take: one(Queries.FixedWindowCalendarTake), store.Charge: one(Queries.FixedWindowCalendarCharge, charged),
			},
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.FixedWindowTake), store.Reserve: one(Queries.FixedWindowReserve), store.Charge: one(Queries.FixedWindowCharge, charged),
				store.Get: one(Queries.FixedWindowGet), store.GetUsage: one(Queries.FixedWindowUsage),
				store.Refund: one(Queries.FixedWindowRefund), store.Undo: one(Queries.FixedWindowUndo), store.Settle: one(Queries.FixedWindowSettle, ended),
				store.Block: none(Queries.FixedWindowBlock), store.Unblock: none(Queries.FixedWindowUnblock, unblocked), store.Reset: deletes(Queries.FixedWindowReset),
				store.Present: number(Queries.FixedWindowPresent), store.Insert: deletes(Queries.FixedWindowInsert),
			},
		}
	}),
	algorithm.SlidingWindowCounter: sync.OnceValue(func() *Table {
		return &Table{
			view: counterView, state: counterState,
			takeMany: many(Queries.SlidingWindowCounterTakeMany), takeAll: many(Queries.SlidingWindowCounterTakeAll), locked: many(Queries.SlidingWindowCounterLocked, ofEach),
			adjust: one(Queries.SlidingWindowCounterAdjust, adjusted), deletes: deletes(Queries.SlidingWindowCounterDelete),
			marked: [store.Undo + 1]lazy{store.Take: one(Queries.SlidingWindowCounterTakeMarked), store.Reserve: one(Queries.SlidingWindowCounterReserveMarked), store.Charge: one(Queries.SlidingWindowCounterChargeMarked, charged),
				store.Refund: one(Queries.SlidingWindowCounterRefundMarked), store.Undo: one(Queries.SlidingWindowCounterUndoMarked)},
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.SlidingWindowCounterTake), store.Reserve: one(Queries.SlidingWindowCounterReserve), store.Charge: one(Queries.SlidingWindowCounterCharge, charged),
				store.Get: one(Queries.SlidingWindowCounterGet), store.GetUsage: one(Queries.SlidingWindowCounterUsage),
				store.Refund: one(Queries.SlidingWindowCounterRefund), store.Undo: one(Queries.SlidingWindowCounterUndo), store.Settle: one(Queries.SlidingWindowCounterSettle, ended),
				store.Block: none(Queries.SlidingWindowCounterBlock), store.Unblock: none(Queries.SlidingWindowCounterUnblock, unblocked), store.Reset: deletes(Queries.SlidingWindowCounterReset),
				store.Present: number(Queries.SlidingWindowCounterPresent), store.Insert: deletes(Queries.SlidingWindowCounterInsert),
			},
		}
	}),
	algorithm.SlidingWindowLog: sync.OnceValue(func() *Table {
		return &Table{
			view: logView, state: logState,
			takeMany: many(Queries.SlidingWindowLogTakeMany), takeAll: many(Queries.SlidingWindowLogTakeAll), locked: many(Queries.SlidingWindowLogLocked, ofEach),
			adjust: one(Queries.SlidingWindowLogAdjust, adjusted), deletes: deletes(Queries.SlidingWindowLogDelete),
			marked: [store.Undo + 1]lazy{store.Take: one(Queries.SlidingWindowLogTakeMarked), store.Reserve: one(Queries.SlidingWindowLogReserveMarked), store.Charge: one(Queries.SlidingWindowLogChargeMarked, charged),
				store.Refund: one(Queries.SlidingWindowLogRefundMarked), store.Undo: one(Queries.SlidingWindowLogUndoMarked)},
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.SlidingWindowLogTake), store.Reserve: one(Queries.SlidingWindowLogReserve), store.Charge: one(Queries.SlidingWindowLogCharge, charged),
				store.Get: one(Queries.SlidingWindowLogGet), store.GetUsage: one(Queries.SlidingWindowLogUsage),
				store.Refund: one(Queries.SlidingWindowLogRefund), store.Undo: one(Queries.SlidingWindowLogUndo), store.Settle: one(Queries.SlidingWindowLogSettle, ended),
				store.Block: none(Queries.SlidingWindowLogBlock), store.Unblock: none(Queries.SlidingWindowLogUnblock, unblocked), store.Reset: deletes(Queries.SlidingWindowLogReset),
				store.Present: number(Queries.SlidingWindowLogPresent), store.Insert: deletes(Queries.SlidingWindowLogInsert),
			},
		}
	}),
	algorithm.Balance: sync.OnceValue(func() *Table {
		return &Table{
			view: accountView, state: accountState,
			takeMany: many(Queries.BalanceTakeMany), takeAll: many(Queries.BalanceTakeAll), locked: many(Queries.BalanceLocked, ofEach),
			deletes: deletes(Queries.BalanceDelete), grantOnce: one(Queries.BalanceGrantOnce),
			grants: [2]lazy{one(Queries.BalanceGrantMarked), one(Queries.BalanceGrantOnceMarked)},
			marked: [store.Undo + 1]lazy{store.Take: one(Queries.BalanceTakeMarked), store.Reserve: one(Queries.BalanceReserveMarked), store.Charge: one(Queries.BalanceChargeMarked, charged),
				store.Refund: one(Queries.BalanceRefundMarked), store.Undo: one(Queries.BalanceUndoMarked)},
			kinds: [store.Leave + 1]lazy{
				store.Take: one(Queries.BalanceTake), store.Reserve: one(Queries.BalanceReserve), store.Charge: one(Queries.BalanceCharge, charged),
				store.Grant: one(Queries.BalanceGrant), store.Refund: one(Queries.BalanceRefund), store.Undo: one(Queries.BalanceUndo), store.Settle: one(Queries.BalanceSettle, ended),
				store.Get: one(Queries.BalanceGet), store.GetUsage: one(Queries.BalanceUsage),
				store.Block: none(Queries.BalanceBlock), store.Unblock: none(Queries.BalanceUnblock, unblocked), store.Reset: deletes(Queries.BalanceReset),
			},
		}
	}),
}

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
	op, q, t := c.Op, &c.Op.Query, Of(c.Op.Algorithm)
	s := t.kinds[op.Kind]
	switch once := op.Admission != nil; {
	case op.Kind != store.Grant:
	case once && q.Records():
		s = t.grants[1]
	case q.Records():
		s = t.grants[0]
	case once:
		s = t.grantOnce
	}
	calendar := q.Calendar != nil && (op.Kind == store.Take || op.Kind == store.Charge)
	if calendar {
		s = t.calendar[op.Kind]
	}
	if q.Records() && (!op.Locks || q.Ledger) && int(op.Kind) < len(t.marked) && t.marked[op.Kind] != nil {
		s = t.marked[op.Kind]
	}
	w := of(op)
	defer w.free()
	err, f := s().run(c.Context, tx, w), &w.fields
	switch {
	case calendar && (errors.Is(err, pgx.ErrNoRows) || err == nil && f.granted == otherPeriod):
		return exec.ErrOtherPeriod
	case err != nil:
		return AsLocked(c.Context, q.LockWait, err)
	}
	switch op.Kind {
	case store.Block, store.Unblock:
	case store.Present:
		op.Wait = f.deleted
	case store.Reset, store.Leave, store.Insert:
		op.Allowed = f.deleted > 0
	case store.Settle:
		e := f.ended(op.Reservation())
		op.Ended = &e
	case store.Get, store.GetUsage:
		op.Outcome = f.continued(q, t.state(f))
		op.Usage = store.Usage{Outcome: op.Outcome, Reservations: int(f.reservations), Reserved: f.reserved}
		if q.Algorithm == algorithm.Balance && op.Kind == store.GetUsage {
			op.Usage.Account, err = f.account()
		}
	case store.Grant:
		op.Lot.Refused, f.granted = f.refused(), max(0, f.granted)
		op.Outcome = f.outcome(t.view(&w.views, 1, f, q))
		if q.Now != nil {
			op.Outcome.Now = *q.Now
		}
	default:
		op.Outcome = f.outcome(t.view(&w.views, 1, f, q))
		if q.Now != nil {
			op.Outcome.Now = *q.Now
		}
	}
	return err
}

// Adjust does what a Settle does to the key's row, by the op's Ended, whose reservation the
// transaction has locked. It sets Ended's outcome and returns the units that went back.
func (c Call) Adjust(tx db.DBTX) (back float64, err error) {
	t, e := Of(c.Op.Algorithm), c.Op.Ended
	w := of(c.Op)
	defer w.free()
	w.now = &e.Now
	if err = t.adjust().run(c.Context, tx, w); err != nil {
		return 0, err
	}
	w.fields.now = e.Now
	e.Outcome = w.fields.continued(&store.Query{Rules: e.Rules}, t.state(&w.fields))
	return w.fields.granted, nil
}

// Delete deletes the key's row and reports whether there was one.
func (c Call) Delete(tx db.DBTX) (was bool, err error) {
	w := of(c.Op)
	defer w.free()
	err = Of(c.Op.Algorithm).deletes().run(c.Context, tx, w)
	return w.fields.deleted > 0, err
}

// Keys counts the keys that have a row under a policy.
func Keys(ctx context.Context, tx db.DBTX, a algorithm.Name, policy string) (int64, error) {
	switch a {
	case algorithm.LeakyBucket:
		return Queries.LeakyBucketKeys(ctx, tx, policy)
	case algorithm.LeakyBucketQueue:
		return Queries.LeakyBucketQueueKeys(ctx, tx, policy)
	case algorithm.FixedWindow:
		return Queries.FixedWindowKeys(ctx, tx, policy)
	case algorithm.SlidingWindowCounter:
		return Queries.SlidingWindowCounterKeys(ctx, tx, policy)
	case algorithm.SlidingWindowLog:
		return Queries.SlidingWindowLogKeys(ctx, tx, policy)
	case algorithm.Balance:
		return Queries.BalanceKeys(ctx, tx, policy)
	}
	return Queries.TokenBucketKeys(ctx, tx, policy)
}

// AsLocked returns ErrLocked for a row that was locked for longer than a LockWait.
// Retrying the statement would not help.
func AsLocked(ctx context.Context, wait time.Duration, err error) error {
	if err != nil && wait > 0 && exec.IsLockTimeout(ctx, err) {
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
	return locked, t.locked().run(ctx, tx, w)
}

// TakeMany runs one statement for rows of one algorithm and leaves the outcomes in
// them. now is the caller's clock, nil for the database's. A pipeline may call it twice: see
// exec.Pipeline.
func (t *Table) TakeMany(ctx context.Context, tx db.DBTX, rows []*store.Row, now *int64) error {
	return t.take(ctx, tx, t.takeMany(), rows, now)
}

// TakeAll is TakeMany of a statement that fails unless all rows are granted.
func (t *Table) TakeAll(ctx context.Context, tx db.DBTX, rows []*store.Row, now *int64) error {
	return t.take(ctx, tx, t.takeAll(), rows, now)
}

func (t *Table) take(ctx context.Context, tx db.DBTX, s *statement, rows []*store.Row, now *int64) error {
	w := ofRows(rows, now)
	defer w.free()
	w.view = t.view
	if err := s.run(ctx, tx, w); err != nil {
		for _, r := range rows {
			r.Outcome = store.Outcome{} // rows that were read before an error are void
		}
		return err
	}
	return allDecided(rows)
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

// all returns the statements.
func (t *Table) all() (all []*statement) {
	for _, s := range slices.Concat(t.kinds[:], t.calendar[:], t.marked[:], []lazy{t.takeMany, t.takeAll, t.locked, t.adjust, t.deletes, t.grantOnce, t.grants[0], t.grants[1]}) {
		if s != nil {
			all = append(all, s())
		}
	}
	return all
}

// Binaries returns the statements that are sent in binary, each with the fields that its
// columns are read into.
func Binaries() map[*exec.Binary][]string {
	all := map[*exec.Binary][]string{}
	for a := range tables {
		for _, s := range Of(a).all() {
			for _, c := range s.columns {
				if s.binary != nil {
					all[s.binary] = append(all[s.binary], c.name)
				}
			}
		}
	}
	return all
}
