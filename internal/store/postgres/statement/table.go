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

	take, takeMany, takeAll       *statement
	charge, get, usage, reserve   *statement
	refund, undo, settle          *statement
	block, unblock, reset, locked *statement
	calendarTake, calendarCharge  *statement // of a query with a calendar
}

// What some statements mean by a name.
var (
	charged   = names{"Capacity": float(func(w *wire) float64 { return w.query.Burst })}
	unblocked = names{"UntilUs": integer(func(w *wire) int64 { return w.until })}
	ofEach    = names{"Policies": texts(perRow, func(r *store.Row) string { return r.Query.Policy })}
)

// Of returns the statements of an algorithm.
func Of(a algorithm.Name) *Table { return tables[a] }

var tables = map[algorithm.Name]*Table{
	algorithm.LeakyBucket: {
		view: leakyView, state: leakyState,
		take: one(Queries.LeakyBucketTake).inBinary(), takeMany: many(Queries.LeakyBucketTakeMany).inBinary(), takeAll: many(Queries.LeakyBucketTakeAll),
		charge: one(Queries.LeakyBucketCharge, charged), get: one(Queries.LeakyBucketGet), usage: one(Queries.LeakyBucketUsage), reserve: one(Queries.LeakyBucketReserve),
		refund: one(Queries.LeakyBucketRefund), undo: one(Queries.LeakyBucketUndo), settle: one(Queries.LeakyBucketSettle),
		block: none(Queries.LeakyBucketBlock), unblock: none(Queries.LeakyBucketUnblock, unblocked), reset: deletes(Queries.LeakyBucketReset), locked: many(Queries.LeakyBucketLocked, ofEach),
	},
	algorithm.LeakyBucketQueue: {
		view: bucketView, state: bucketState,
		take: one(Queries.LeakyBucketQueueTake).inBinary(), takeMany: many(Queries.LeakyBucketQueueTakeMany).inBinary(), takeAll: many(Queries.LeakyBucketQueueTakeAll),
		charge: one(Queries.LeakyBucketQueueCharge, charged), get: one(Queries.LeakyBucketQueueGet), usage: one(Queries.LeakyBucketQueueUsage), reserve: one(Queries.LeakyBucketQueueReserve),
		block: none(Queries.LeakyBucketQueueBlock), unblock: none(Queries.LeakyBucketQueueUnblock, unblocked), reset: deletes(Queries.LeakyBucketQueueReset), locked: many(Queries.LeakyBucketQueueLocked, ofEach),
	},
	algorithm.TokenBucket: {
		view: bucketView, state: bucketState,
		take: one(Queries.TokenBucketTake).inBinary(), takeMany: many(Queries.TokenBucketTakeMany).inBinary(), takeAll: many(Queries.TokenBucketTakeAll),
		charge: one(Queries.TokenBucketCharge, charged), get: one(Queries.TokenBucketGet), usage: one(Queries.TokenBucketUsage), reserve: one(Queries.TokenBucketReserve),
		refund: one(Queries.TokenBucketRefund), undo: one(Queries.TokenBucketUndo), settle: one(Queries.TokenBucketSettle),
		block: none(Queries.TokenBucketBlock), unblock: none(Queries.TokenBucketUnblock, unblocked), reset: deletes(Queries.TokenBucketReset), locked: many(Queries.TokenBucketLocked, ofEach),
	},
	algorithm.GCRA: {
		view: bucketView, state: bucketState,
		take: one(Queries.GCRATake).inBinary(), takeMany: many(Queries.GCRATakeMany).inBinary(), takeAll: many(Queries.GCRATakeAll),
		charge: one(Queries.GCRACharge, charged), get: one(Queries.GCRAGet), usage: one(Queries.GCRAUsage), reserve: one(Queries.GCRAReserve),
		refund: one(Queries.GCRARefund), undo: one(Queries.GCRAUndo), settle: one(Queries.GCRASettle),
		block: none(Queries.GCRABlock), unblock: none(Queries.GCRAUnblock, unblocked), reset: deletes(Queries.GCRAReset), locked: many(Queries.GCRALocked, ofEach),
	},
	algorithm.FixedWindow: {
		view: windowView, state: windowState,
		take: one(Queries.FixedWindowTake).inBinary(), takeMany: many(Queries.FixedWindowTakeMany).inBinary(), takeAll: many(Queries.FixedWindowTakeAll),
		calendarTake: one(Queries.FixedWindowCalendarTake).inBinary(), calendarCharge: one(Queries.FixedWindowCalendarCharge, charged),
		charge: one(Queries.FixedWindowCharge, charged), get: one(Queries.FixedWindowGet), usage: one(Queries.FixedWindowUsage), reserve: one(Queries.FixedWindowReserve),
		refund: one(Queries.FixedWindowRefund), undo: one(Queries.FixedWindowUndo), settle: one(Queries.FixedWindowSettle),
		block: none(Queries.FixedWindowBlock), unblock: none(Queries.FixedWindowUnblock, unblocked), reset: deletes(Queries.FixedWindowReset), locked: many(Queries.FixedWindowLocked, ofEach),
	},
	algorithm.SlidingWindowCounter: {
		view: counterView, state: counterState,
		take: one(Queries.SlidingWindowCounterTake).inBinary(), takeMany: many(Queries.SlidingWindowCounterTakeMany).inBinary(), takeAll: many(Queries.SlidingWindowCounterTakeAll),
		charge: one(Queries.SlidingWindowCounterCharge, charged), get: one(Queries.SlidingWindowCounterGet), usage: one(Queries.SlidingWindowCounterUsage), reserve: one(Queries.SlidingWindowCounterReserve),
		refund: one(Queries.SlidingWindowCounterRefund), undo: one(Queries.SlidingWindowCounterUndo), settle: one(Queries.SlidingWindowCounterSettle),
		block: none(Queries.SlidingWindowCounterBlock), unblock: none(Queries.SlidingWindowCounterUnblock, unblocked), reset: deletes(Queries.SlidingWindowCounterReset), locked: many(Queries.SlidingWindowCounterLocked, ofEach),
	},
	algorithm.SlidingWindowLog: {
		view: logView, state: logState,
		take: one(Queries.SlidingWindowLogTake).inBinary(), takeMany: many(Queries.SlidingWindowLogTakeMany).inBinary(), takeAll: many(Queries.SlidingWindowLogTakeAll),
		charge: one(Queries.SlidingWindowLogCharge, charged), get: one(Queries.SlidingWindowLogGet), usage: one(Queries.SlidingWindowLogUsage), reserve: one(Queries.SlidingWindowLogReserve),
		refund: one(Queries.SlidingWindowLogRefund), undo: one(Queries.SlidingWindowLogUndo), settle: one(Queries.SlidingWindowLogSettle),
		block: none(Queries.SlidingWindowLogBlock), unblock: none(Queries.SlidingWindowLogUnblock, unblocked), reset: deletes(Queries.SlidingWindowLogReset), locked: many(Queries.SlidingWindowLogLocked, ofEach),
	},
}
