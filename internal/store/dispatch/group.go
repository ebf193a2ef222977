package dispatch

import (
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// group is requests of one key, in order of arrival, which are one row of a statement.
// Requests of equal cost are a number of steps, of which the first are granted. If costs
// differ, the row asks for their sum, all or nothing; see split.
type group struct {
	store.Row
	op           *store.Op // with the Row's Query
	first, tail  *waiter
	waiters      int
	units        float64 // the sum of all costs
	mixed        bool    // costs differ
	callersOfAll int     // of the statement

	behind *group // the key's next one
	// Of the key's first group in the queue:
	last    *group
	callers int // of all its groups
}

// ownGroup makes w the first of a group that is the key's only one.
func (w *waiter) ownGroup() *group {
	q := &w.op.Query
	w.group = group{
		op: w.op, Row: store.Row{Query: q, Count: int64(q.Count)}, first: w, tail: w, waiters: 1, units: float64(q.Cost * q.Count),
		last: &w.group, callers: 1,
	}
	return &w.group
}

// add puts w into a key's last group, or behind it, and returns the last group.
func (g *group) add(w *waiter) *group {
	if !g.admits(&w.op.Query) {
		g.behind = w.ownGroup()
		return g.behind
	}
	g.mixed = g.mixed || w.op.Cost != g.Query.Cost
	g.tail.next, g.tail = w, w
	g.waiters++
	g.Count += int64(w.op.Count)
	g.units += float64(w.op.Cost * w.op.Count)
	return g
}

// admits reports whether q may join the group: not with another floor. If a denial blocks the
// key, a group has at most the requests that can pass, all of one cost, so that the statement
// decides each denial. The sum of different costs must be able to pass, which in a balance any may.
func (g *group) admits(q *store.Query) bool {
	steps := float64(g.Count) + q.Count
	switch {
	case g.Query.Rules != q.Rules || g.Query.Floor != q.Floor:
		return false
	case q.BlockFor != 0:
		return g.Query.Cost == q.Cost && steps <= algorithm.Fit(q.Ceiling(), 0, q.Cost)
	case g.mixed || g.Query.Cost != q.Cost:
		sum := g.units + float64(q.Cost*q.Count)
		return algorithm.Fit(q.Ceiling(), 0, sum) >= 1 || q.Algorithm == algorithm.Balance && sum <= algorithm.MaxUnits
	}
	return steps <= algorithm.MaxUnits
}

// prepare readies a group for a statement and drops callers that have left. It reports
// whether any caller remains.
func (g *group) prepare() bool {
	g.waiters, g.Count, g.units, g.mixed = 0, 0, 0, false
	link := &g.first
	for w := g.first; w != nil; w = w.next {
		if w.gone() {
			*link = w.next
			continue
		}
		w.state = sent
		g.waiters++
		g.Count += int64(w.op.Count)
		g.units += float64(w.op.Cost * w.op.Count)
		g.mixed = g.mixed || w.op.Cost != g.first.op.Cost
		link, g.tail = &w.next, w
	}
	switch {
	case g.waiters == 0:
		return false
	case g.waiters == 1:
		g.op = g.first.op
	default:
		g.op = g.whole()
	}
	g.Query = &g.op.Query
	return true
}

// whole returns the query for all requests of the group at once. Its clock is not set.
func (g *group) whole() *store.Op {
	w := g.first
	if w.whole == nil {
		w.whole = new(store.Op)
	}
	w.whole.Query = w.op.Query
	q := &w.whole.Query
	q.Now, q.Units, q.Count = nil, g.units, float64(g.Count)
	if g.mixed {
		g.Count = 1
		q.Cost, q.Count, q.Unit = g.units, 1, g.units
	}
	return w.whole
}

// answer gives all callers their outcomes, as if their requests had been decided one after
// the other. The group may be part of a caller that it answers.
func (g *group) answer(err error) {
	var (
		w, o, mixed   = g.first, g.Outcome, g.mixed
		callers       = g.callersOfAll
		cost          = g.Query.Cost
		units, before = g.units, 0.0
	)
	for w != nil {
		next, q := w.next, &w.op.Query
		units -= float64(q.Cost * q.Count)
		after := before + q.Count
		switch {
		case err != nil:
			w.answer(err, 0)
		case mixed:
			w.grant(shareSum(o, q, units), callers)
		default:
			w.grant(share(o, q, cost, before), callers)
		}
		w, before = next, after
	}
}

// grant answers the request with its outcome.
func (w *waiter) grant(o store.Outcome, rows int) {
	w.op.Outcome = o
	w.answer(nil, rows)
}

// share returns the outcome of one request of a group, from the outcome o of the whole. Each
// step of the group costs cost, and before is the number of steps before this request's.
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
