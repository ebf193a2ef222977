package coalesce

import (
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// waiter is a caller with its query. After its answer it belongs to its caller again.
type waiter struct {
	line   *line
	op     *store.Op
	query  *store.Query // the op's
	own    row          // if it is the first of its row
	whole  *store.Op    // of its row, if that has more callers
	next   *waiter      // in its row
	err    error
	ticket *waiting.Ticket
}

// waiter begins the wait of a caller. l.mu is locked.
func (l *line) waiter(op *store.Op) *waiter {
	w, ok := l.waiters.Get().(*waiter)
	if !ok {
		w = &waiter{ticket: waiting.NewTicket()}
	}
	w.line, w.op, w.query = l, op, &op.Query
	l.watch.Begin(w.ticket)
	return w
}

// free returns a waiter that has its answer to the pool.
func (l *line) free(w *waiter) {
	*w = waiter{ticket: w.ticket, whole: w.whole}
	l.waiters.Put(w)
}

// answer gives the caller its answer, from a statement with so many callers. If the caller
// has gone, a grant stays counted.
func (w *waiter) answer(o store.Outcome, err error, shares int) {
	if w.err = err; err == nil {
		w.op.Outcome, w.op.Rows = o, shares
	}
	w.ticket.Answer()
}

// row is one row of a statement: requests of one key, in order of arrival. Requests of
// equal cost are a number of steps, of which the first are granted. If costs differ, the
// row asks for their sum, all or nothing; see split.
type row struct {
	store.Row
	op          *store.Op // with the Row's Query
	first, tail *waiter
	waiters     int
	units       float64 // the sum of all costs
	mixed       bool    // costs differ
	shares      int     // callers of the statement

	behind *row // the key's next row
	// Of the key's first row in the queue:
	last    *row
	callers int // of all its rows
}

// ownRow makes w the first of a row that is the key's only one.
func (w *waiter) ownRow() *row {
	q := w.query
	w.own = row{
		op: w.op, Row: store.Row{Query: q, Count: int64(q.Count)}, first: w, tail: w, waiters: 1, units: float64(q.Cost * q.Count),
		last: &w.own, callers: 1,
	}
	return &w.own
}

// waiting returns the number of callers that wait for a key whose next row is r.
func (r *row) waiting() int {
	if r == nil {
		return 0
	}
	return r.callers
}

// add puts w into a key's last row, or behind it, and returns the last row.
func (r *row) add(w *waiter) *row {
	if !r.admits(w.query) {
		r.behind = w.ownRow()
		return r.behind
	}
	r.mixed = r.mixed || w.query.Cost != r.Query.Cost
	r.tail.next, r.tail = w, w
	r.waiters++
	r.Count += int64(w.query.Count)
	r.units += float64(w.query.Cost * w.query.Count)
	return r
}

// admits reports whether q may join the row. If a denial blocks the key, a row has at
// most the requests that can pass, all of one cost, so that the statement decides each
// denial.
func (r *row) admits(q *store.Query) bool {
	steps := float64(r.Count) + q.Count
	switch {
	case r.Query.Rules != q.Rules:
		return false
	case q.BlockFor != 0:
		return r.Query.Cost == q.Cost && steps <= algorithm.Fit(q.Capacity, 0, q.Cost)
	case r.mixed || r.Query.Cost != q.Cost:
		return algorithm.Fit(q.Capacity, 0, r.units+float64(q.Cost*q.Count)) >= 1
	}
	return steps <= algorithm.MaxUnits
}

// prepare readies a row for a statement and drops callers that have left. It reports
// whether any caller remains.
func (r *row) prepare() bool {
	r.waiters, r.Count, r.units, r.mixed = 0, 0, 0, false
	link := &r.first
	for w := r.first; w != nil; w = w.next {
		if w.ticket.Gone() {
			*link = w.next
			continue
		}
		w.ticket.State = waiting.Sent
		r.waiters++
		r.Count += int64(w.query.Count)
		r.units += float64(w.query.Cost * w.query.Count)
		r.mixed = r.mixed || w.query.Cost != r.first.query.Cost
		link, r.tail = &w.next, w
	}
	switch {
	case r.waiters == 0:
		return false
	case r.waiters == 1:
		r.op = r.first.op
	default:
		r.op = r.whole()
	}
	r.Query = &r.op.Query
	return true
}

// whole returns the query for all requests of the row at once. Its clock is not set.
func (r *row) whole() *store.Op {
	w := r.first
	if w.whole == nil {
		w.whole = new(store.Op)
	}
	w.whole.Query = *w.query
	q := &w.whole.Query
	q.Now, q.Units, q.Count = nil, r.units, float64(r.Count)
	if r.mixed {
		r.Count = 1
		q.Cost, q.Count, q.Unit = r.units, 1, r.units
	}
	return w.whole
}

// answer gives all callers their outcomes, as if their requests had been decided one after
// the other. The row may be part of a caller that it answers.
func (r *row) answer(err error) {
	var (
		w, o, mixed   = r.first, r.Outcome, r.mixed
		shares        = r.shares
		cost          = r.Query.Cost
		units, before = r.units, 0.0
	)
	for w != nil {
		next, q := w.next, w.query
		units -= float64(q.Cost * q.Count)
		after := before + q.Count
		switch {
		case err != nil:
			w.answer(store.Outcome{}, err, 0)
		case mixed:
			w.answer(shareSum(o, q, units), nil, shares)
		default:
			w.answer(share(o, q, cost, before), nil, shares)
		}
		w, before = next, after
	}
}

// share returns the outcome of a request of q.Count steps in a row of equal steps, of which
// so many are before it.
func share(o store.Outcome, q *store.Query, cost, before float64) store.Outcome {
	granted := min(o.Granted-before, q.Count)
	switch {
	case granted == q.Count:
		o.BlockedUntil = 0
		if after := o.Granted - before - granted; after > 0 {
			o.View = o.View.Less(float64(cost * after))
		}
		o.Granted = granted
	case granted > 0:
		o.Granted = granted
	case o.Blocked:
	default:
		if before > o.Granted && o.IsBlocked() {
			o.Blocked = true // by the denial before it
		}
		o.Granted = 0
	}
	return o
}
