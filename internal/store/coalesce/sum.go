package coalesce

import (
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// shareSum returns the outcome of a request in a row that asked for the sum of different
// costs, if all were granted or the key was blocked. after is the sum of those after it.
func shareSum(o store.Outcome, q *store.Query, after float64) store.Outcome {
	if o.Granted > 0 {
		o.Granted, o.BlockedUntil = q.Count, 0
		if after > 0 {
			o.View = o.View.Less(after)
		}
	}
	return o
}

// splits reports whether the sum of different costs was denied and does not answer single
// requests: they may fit, or a log's state is about the sum.
func (r *row) splits() bool {
	return r.mixed && r.Outcome.Granted == 0 && (!r.Outcome.Blocked || r.isLog())
}

func (r *row) isLog() bool { return r.Query.Algorithm.Family() == algorithm.Logs }

// split asks again for the requests of a row whose sum did not fit: before later ones of
// their key, and without those that this decision denies. What is asked first fits by the
// state as decided, but not all of it: a sum is rounded once and its parts once each. So each
// time at least one request is answered or leaves the row.
func (l *line) split(r *row) {
	k, rules, o, w := placeOf(r.Query), r.Query.Rules, r.Outcome, r.first
	first, shares := w, r.shares
	level := o.View.Level(&rules, o.UpdatedAt)
	fit := func(q *store.Query) float64 { return algorithm.Fit(rules.Capacity, level, q.Cost) }
	if !r.isLog() {
		for w != nil && fit(w.query) < 1 {
			next := w.next
			w.answer(o, nil, shares) // r may be its
			w = next
		}
	}
	if w == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := w.next
	w.next = nil
	again := w.ownRow()
	last, fits := again, true
	for level += again.units; rest != nil; {
		w, rest = rest, rest.next
		w.next = nil
		switch {
		case fits && !o.Blocked && fit(w.query) >= w.query.Count && (rest != nil || first != again.first):
			level += float64(w.query.Cost * w.query.Count)
			last = last.add(w)
		case fits || o.Blocked:
			fits = false
			last.behind = w.ownRow()
			last = last.behind
		default:
			last = last.add(w)
		}
	}
	again.callers = 0
	for r := again; r != nil; r = r.behind {
		again.callers += r.waiters
		for w := r.first; w != nil; w = w.next {
			w.ticket.State = waiting.Queued
		}
	}
	if later := l.takeOff(k); later != nil {
		last.behind, last = later, later.last
		again.callers += later.callers
	}
	again.last = last
	l.queueRow(k, again)
}
