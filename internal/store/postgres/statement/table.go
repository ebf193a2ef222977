package statement

import (
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Queries are the generated statements.
var Queries = db.New()

// Table has the statements of one algorithm. A LeakyBucketQueue has no Refund, Undo or
// Settle.
type Table struct {
	view  viewer
	state func(*fields) algorithm.State

	kinds                     [store.Leave + 1]*statement  // by the kind of an Op for one key
	calendar                  [store.Charge + 1]*statement // instead, of a query with a calendar
	takeMany, takeAll, locked *statement
}

// What some statements mean by a name.
var (
	charged   = names{"Capacity": float(func(w *wire) float64 { return w.query.Burst })}
	unblocked = names{"UntilUs": integer(func(w *wire) int64 { return w.op.Until })}
	ended     = names{"ID": text(func(w *wire) string { return w.op.ID }), "State": text(func(w *wire) string { return string(w.op.State) })}
	ofEach    = names{"Policies": texts(perRow, func(r *store.Row) string { return r.Query.Policy })}
)

// Of returns the statements of an algorithm.
func Of(a algorithm.Name) *Table { return tables[a] }

var tables = map[algorithm.Name]*Table{
	algorithm.LeakyBucket: {
		view: leakyView, state: leakyState,
		takeMany: many(Queries.LeakyBucketTakeMany).inBinary(), takeAll: many(Queries.LeakyBucketTakeAll), locked: many(Queries.LeakyBucketLocked, ofEach),
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.LeakyBucketTake).inBinary(), store.Reserve: one(Queries.LeakyBucketReserve), store.Charge: one(Queries.LeakyBucketCharge, charged),
			store.Get: one(Queries.LeakyBucketGet), store.GetUsage: one(Queries.LeakyBucketUsage),
			store.Refund: one(Queries.LeakyBucketRefund), store.Undo: one(Queries.LeakyBucketUndo), store.Settle: one(Queries.LeakyBucketSettle, ended),
			store.Block: none(Queries.LeakyBucketBlock), store.Unblock: none(Queries.LeakyBucketUnblock, unblocked), store.Reset: deletes(Queries.LeakyBucketReset),
		},
	},
	algorithm.LeakyBucketQueue: {
		view: bucketView, state: bucketState,
		takeMany: many(Queries.LeakyBucketQueueTakeMany).inBinary(), takeAll: many(Queries.LeakyBucketQueueTakeAll), locked: many(Queries.LeakyBucketQueueLocked, ofEach),
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.LeakyBucketQueueTake).inBinary(), store.Reserve: one(Queries.LeakyBucketQueueReserve), store.Charge: one(Queries.LeakyBucketQueueCharge, charged),
			store.Get: one(Queries.LeakyBucketQueueGet), store.GetUsage: one(Queries.LeakyBucketQueueUsage),
			store.Leave: deletes(Queries.LeakyBucketQueueLeave),
			store.Block: none(Queries.LeakyBucketQueueBlock), store.Unblock: none(Queries.LeakyBucketQueueUnblock, unblocked), store.Reset: deletes(Queries.LeakyBucketQueueReset),
		},
	},
	algorithm.TokenBucket: {
		view: bucketView, state: bucketState,
		takeMany: many(Queries.TokenBucketTakeMany).inBinary(), takeAll: many(Queries.TokenBucketTakeAll), locked: many(Queries.TokenBucketLocked, ofEach),
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.TokenBucketTake).inBinary(), store.Reserve: one(Queries.TokenBucketReserve), store.Charge: one(Queries.TokenBucketCharge, charged),
			store.Get: one(Queries.TokenBucketGet), store.GetUsage: one(Queries.TokenBucketUsage),
			store.Refund: one(Queries.TokenBucketRefund), store.Undo: one(Queries.TokenBucketUndo), store.Settle: one(Queries.TokenBucketSettle, ended),
			store.Block: none(Queries.TokenBucketBlock), store.Unblock: none(Queries.TokenBucketUnblock, unblocked), store.Reset: deletes(Queries.TokenBucketReset),
		},
	},
	algorithm.GCRA: {
		view: bucketView, state: bucketState,
		takeMany: many(Queries.GCRATakeMany).inBinary(), takeAll: many(Queries.GCRATakeAll), locked: many(Queries.GCRALocked, ofEach),
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.GCRATake).inBinary(), store.Reserve: one(Queries.GCRAReserve), store.Charge: one(Queries.GCRACharge, charged),
			store.Get: one(Queries.GCRAGet), store.GetUsage: one(Queries.GCRAUsage),
			store.Refund: one(Queries.GCRARefund), store.Undo: one(Queries.GCRAUndo), store.Settle: one(Queries.GCRASettle, ended),
			store.Block: none(Queries.GCRABlock), store.Unblock: none(Queries.GCRAUnblock, unblocked), store.Reset: deletes(Queries.GCRAReset),
		},
	},
	algorithm.FixedWindow: {
		view: windowView, state: windowState,
		takeMany: many(Queries.FixedWindowTakeMany).inBinary(), takeAll: many(Queries.FixedWindowTakeAll), locked: many(Queries.FixedWindowLocked, ofEach),
		calendar: [store.Charge + 1]*statement{
			store.Take: one(Queries.FixedWindowCalendarTake).inBinary(), store.Charge: one(Queries.FixedWindowCalendarCharge, charged),
		},
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.FixedWindowTake).inBinary(), store.Reserve: one(Queries.FixedWindowReserve), store.Charge: one(Queries.FixedWindowCharge, charged),
			store.Get: one(Queries.FixedWindowGet), store.GetUsage: one(Queries.FixedWindowUsage),
			store.Refund: one(Queries.FixedWindowRefund), store.Undo: one(Queries.FixedWindowUndo), store.Settle: one(Queries.FixedWindowSettle, ended),
			store.Block: none(Queries.FixedWindowBlock), store.Unblock: none(Queries.FixedWindowUnblock, unblocked), store.Reset: deletes(Queries.FixedWindowReset),
		},
	},
	algorithm.SlidingWindowCounter: {
		view: counterView, state: counterState,
		takeMany: many(Queries.SlidingWindowCounterTakeMany).inBinary(), takeAll: many(Queries.SlidingWindowCounterTakeAll), locked: many(Queries.SlidingWindowCounterLocked, ofEach),
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.SlidingWindowCounterTake).inBinary(), store.Reserve: one(Queries.SlidingWindowCounterReserve), store.Charge: one(Queries.SlidingWindowCounterCharge, charged),
			store.Get: one(Queries.SlidingWindowCounterGet), store.GetUsage: one(Queries.SlidingWindowCounterUsage),
			store.Refund: one(Queries.SlidingWindowCounterRefund), store.Undo: one(Queries.SlidingWindowCounterUndo), store.Settle: one(Queries.SlidingWindowCounterSettle, ended),
			store.Block: none(Queries.SlidingWindowCounterBlock), store.Unblock: none(Queries.SlidingWindowCounterUnblock, unblocked), store.Reset: deletes(Queries.SlidingWindowCounterReset),
		},
	},
	algorithm.SlidingWindowLog: {
		view: logView, state: logState,
		takeMany: many(Queries.SlidingWindowLogTakeMany).inBinary(), takeAll: many(Queries.SlidingWindowLogTakeAll), locked: many(Queries.SlidingWindowLogLocked, ofEach),
		kinds: [store.Leave + 1]*statement{
			store.Take: one(Queries.SlidingWindowLogTake).inBinary(), store.Reserve: one(Queries.SlidingWindowLogReserve), store.Charge: one(Queries.SlidingWindowLogCharge, charged),
			store.Get: one(Queries.SlidingWindowLogGet), store.GetUsage: one(Queries.SlidingWindowLogUsage),
			store.Refund: one(Queries.SlidingWindowLogRefund), store.Undo: one(Queries.SlidingWindowLogUndo), store.Settle: one(Queries.SlidingWindowLogSettle, ended),
			store.Block: none(Queries.SlidingWindowLogBlock), store.Unblock: none(Queries.SlidingWindowLogUnblock, unblocked), store.Reset: deletes(Queries.SlidingWindowLogReset),
		},
	},
}
