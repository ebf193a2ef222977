package dispatch

import (
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// shareSum returns the outcome of a request in a group that asked for the sum of different
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
func (g *group) splits() bool {
	return g.mixed && g.Outcome.Granted == 0 && (!g.Outcome.Blocked || g.isLog())
}

func (g *group) isLog() bool { return g.Query.Algorithm.Family() == algorithm.Logs }

// split asks again for the requests of a group whose sum did not fit: before later ones of
// their key, and without those that this decision denies. What is asked first fits by the
// state as decided, but not all of it: a sum is rounded once and its parts once each. So each
// time at least one request is answered or leaves the group.
func (q *queue) split(g *group) {
	k, rules, o, w := g.first.key, g.Query.Rules, g.Outcome, g.first
	first, callers := w, g.callersOfAll
	level := o.View.Level(&rules, o.UpdatedAt)
	fit := func(op *store.Op) float64 { return algorithm.Fit(rules.Capacity, level, op.Cost) }
	if !g.isLog() {
		for w != nil && fit(w.op) < 1 {
			next := w.next
			w.grant(o, callers) // g may be its
			w = next
		}
	}
	if w == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	rest := w.next
	w.next = nil
	again := w.ownGroup()
	last, fits := again, true
	for level += again.units; rest != nil; {
		w, rest = rest, rest.next
		w.next = nil
		switch {
		case fits && !o.Blocked && fit(w.op) >= w.op.Count && (rest != nil || first != again.first):
			level += float64(w.op.Cost * w.op.Count)
			last = last.add(w)
		case fits || o.Blocked:
			fits = false
			last.behind = w.ownGroup()
			last = last.behind
		default:
			last = last.add(w)
		}
	}
	again.callers = 0
	for g := again; g != nil; g = g.behind {
		again.callers += g.waiters
		for w := g.first; w != nil; w = w.next {
			w.state = queued
		}
	}
	if later := q.takeOff(k); later != nil {
		last.behind, last = later, later.last
		again.callers += later.callers
	}
	again.last = last
	q.push(again)
}
