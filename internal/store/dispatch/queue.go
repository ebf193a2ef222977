package dispatch

import (
	"context"
	"errors"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// queue has the Takes of one shard, algorithm and Commit, which may share statements. Queues never
// wait for each other. Dispatcher.mu guards it.
type queue struct {
	*Dispatcher
	inFlight int // statements
	// another is the number of waiting keys for which another statement is sent while one is in
	// flight. Fewer keys wait for that one.
	another int

	// groups has the next group of each key, in order of arrival. The key's other groups are
	// behind it. A statement has each key once, so requests that cannot be merged wait
	// for the next statement.
	groups []*group
	fronts map[key]*group // the groups in the queue, by key
}

// shardQueues has a queue for each algorithm and Commit.
type shardQueues [2 * algorithm.Indexes]queue

// queue returns the queue of op, or nil if it shares no statement. d.mu is locked.
func (d *Dispatcher) queue(op *store.Op) *queue {
	if !op.Merges || !d.Share || d.Shards > 0 && op.BlockFor != 0 {
		return nil
	}
	shard, of := d.shard(op.Key)
	for len(d.queues) <= shard {
		queues := new(shardQueues)
		for i := range queues {
			queues[i].Dispatcher, queues[i].fronts = d, map[key]*group{}
		}
		d.queues = append(d.queues, queues)
	}
	i := 2 * op.Algorithm.Index()
	if op.Commit == store.Relaxed {
		i++
	}
	q := &d.queues[shard][i]
	if q.another = splitGroups; of > 1 {
		q.another = q.Rows
	}
	return q
}

// shard is Database's, or that of Shards.
func (d *Dispatcher) shard(key string) (n, of int) {
	if d.Shards > 0 {
		return int(maphash.String(d.seed, key) % uint64(d.Shards)), d.Shards
	}
	return d.db.Shard(key)
}

// splitGroups is a queue's another: on a single contended key two statements would only wait
// for each other. With several shards it is Rows, since there a statement costs more and a
// row less, and each shard has separate statements in flight.
const splitGroups = 8

// add queues a request, behind the groups of its key. A statement in flight will send it
// later.
func (q *queue) add(w *waiter) {
	front := q.fronts[w.key]
	if front == nil {
		q.push(w.ownGroup())
		return
	}
	front.last = front.last.add(w)
	front.callers++
}

// push queues the next group of a key that has none.
func (q *queue) push(front *group) {
	q.fronts[front.first.key] = front
	q.groups = append(q.groups, front)
	if q.inFlight == 0 || q.inFlight < q.Statements && len(q.groups) >= q.another {
		q.inFlight++
		q.start(q.drain)
	}
}

// next takes the next batch off the queue: one group of each key.
func (q *queue) next(batch []*group) []*group {
	n := min(len(q.groups), q.Rows)
	var behind []*group
	for _, g := range q.groups[:n] {
		k := g.first.key
		if next := g.behind; next != nil {
			next.last, next.callers = g.last, g.callers-g.waiters
			g.behind, q.fronts[k] = nil, next
			behind = append(behind, next)
		} else {
			delete(q.fronts, k)
		}
		if g.prepare() {
			batch = append(batch, g)
		}
	}
	rest := copy(q.groups, q.groups[n:])
	clear(q.groups[rest:])
	q.groups = append(q.groups[:rest], behind...)
	return batch
}

// takeOff takes a key's groups off the queue and returns the first.
func (q *queue) takeOff(k key) *group {
	front := q.fronts[k]
	if front == nil {
		return nil
	}
	delete(q.fronts, k)
	i := slices.Index(q.groups, front)
	q.groups = slices.Delete(q.groups, i, i+1)
	return front
}

// batch is the groups that a goroutine sends, reused for its next statements.
type batch struct {
	groups []*group
	rows   []*store.Row
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// forget forgets the groups, which are their callers' again.
func (b *batch) forget() {
	clear(b.groups)
	clear(b.rows[:cap(b.rows)])
}

// asRows returns groups as rows.
func (b *batch) asRows(groups []*group) []*store.Row {
	b.rows = b.rows[:0]
	for _, g := range groups {
		b.rows = append(b.rows, &g.Row)
	}
	return b.rows
}

// drain sends batches until no request waits, or few enough for the other statements in
// flight.
func (q *queue) drain() {
	b := batches.Get().(*batch)
	defer batches.Put(b)
	for {
		q.mu.Lock()
		if len(q.groups) == 0 || q.inFlight > 1 && len(q.groups) < q.another {
			q.inFlight--
			q.done()
			q.mu.Unlock()
			return
		}
		b.groups = q.next(b.groups[:0])
		q.mu.Unlock()
		q.run(b, b.groups)
		b.forget()
		// Callers that have an answer often send again: let them, so that the next
		// statement carries more.
		runtime.Gosched()
	}
}

// sendOwn sends the caller's own statement. If the caller leaves while that is in flight,
// another goroutine continues it. d.mu is locked, and unlocked after it.
func (d *Dispatcher) sendOwn(ctx context.Context, q *queue, w *waiter) {
	q.inFlight++
	d.busy++
	g := w.ownGroup()
	g.prepare()
	s := d.detach()
	s.carry(w)
	wait := begun{w, d, w.phase.Load()}
	d.mu.Unlock()
	b := batches.Get().(*batch)
	b.groups = append(b.groups[:0], g)
	returns := false
	ends := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(q.groups) > 0 {
			go q.drain()
		} else {
			q.inFlight--
			d.done()
		}
	}
	defer func() { // the application's hooks may panic, and its caller recover
		if !returns {
			d.callers.Add(-1)
			ends()
		}
	}()
	if ctx.Done() != nil {
		s.Own()
		stay := context.AfterFunc(ctx, func() {
			if wait.end(store.EndedContext(ctx)) {
				s.Leave()
			}
		})
		defer stay()
	}
	answered := q.send(s, b, b.groups)
	returns = true
	if !answered {
		go func() {
			s.Hand()
			q.send(s, b, b.groups)
			b.forget()
			batches.Put(b)
			ends()
		}()
		return
	}
	b.forget()
	batches.Put(b)
	ends()
}

// run decides groups, also if their statement fails.
func (q *queue) run(b *batch, groups []*group) {
	if len(groups) == 0 {
		return
	}
	slices.SortFunc(groups, func(a, b *group) int { return a.first.key.compare(&b.first.key) })
	q.mu.Lock()
	s := q.detach()
	for _, g := range groups {
		for w := g.first; w != nil; w = w.next {
			s.carry(w)
		}
	}
	q.mu.Unlock()
	q.send(s, b, groups)
}

// send sends the statement of groups and answers them. It reports false if another goroutine
// has to do that.
func (q *queue) send(s *statement, b *batch, groups []*group) bool {
	elsewhere := false
	defer func() {
		if !elsewhere {
			s.Cancel()
		}
	}()
	callers := 0
	for _, g := range groups {
		callers += g.waiters
	}
	for _, g := range groups {
		g.callersOfAll, g.Query.LockWait = callers, UsualLockWait
	}
	var err error
	if g := groups[0]; len(groups) == 1 && (g.waiters == 1 || g.Query.BlockFor == 0) { // its statement costs less
		if g.waiters > 1 {
			g.Query.Now = q.Now()
		}
		if err = q.db.Do(s, g.op); err == nil {
			g.Outcome = g.op.Outcome
		}
	} else {
		err = q.db.TakeMany(s, b.asRows(groups), q.Now())
	}
	if elsewhere = err == store.ErrElsewhere; elsewhere {
		return false
	}
	if err = q.timed(s, err); err != nil {
		groups = slices.DeleteFunc(groups, func(g *group) bool { // those that a failed TakeMany still decided
			decided := g.Outcome.Decided
			if decided {
				q.answer(g, nil)
			}
			return decided
		})
	}
	switch {
	case len(groups) == 0:
	case err == store.ErrLocked:
		q.sortOut(s, b, groups)
	case errors.As(err, new(*store.RowError)) && len(groups) > 1:
		q.runPieces(b, groups)
	default:
		q.answerAll(groups, err)
	}
	return true
}

// pieces is the number of statements that a batch is split into to find the row that
// fails or delays it. A piece with such a row is split again. So a bad key costs its
// neighbours few statements.
const pieces = 16

func (q *queue) runPieces(b *batch, groups []*group) {
	for piece := range slices.Chunk(groups, (len(groups)+pieces-1)/pieces) {
		q.run(b, piece)
	}
}

func (q *queue) answerAll(groups []*group, err error) {
	for _, g := range groups {
		q.answer(g, err)
	}
}

func (q *queue) answer(g *group, err error) {
	if err == nil && g.splits() {
		q.split(g)
	} else {
		g.answer(err)
	}
}

// sortOut sends groups again whose rows are not locked, and sets the others aside.
func (q *queue) sortOut(ctx context.Context, b *batch, groups []*group) {
	if len(groups) == 1 {
		q.setAside(groups)
		return
	}
	isLocked, err := q.db.Locked(ctx, b.asRows(groups))
	switch {
	case err != nil:
		q.answerAll(groups, err)
		return
	case !slices.Contains(isLocked, true):
		// The row is free again, or another transaction has inserted it and not
		// committed.
		q.runPieces(b, groups)
		return
	}
	var free, held []*group
	for i, g := range groups {
		if isLocked[i] {
			held = append(held, g)
		} else {
			free = append(free, g)
		}
	}
	q.setAside(held)
	q.run(b, free)
}

// setAside makes the callers of groups wait for their locked rows, and behind them those
// that came for the same keys meanwhile.
func (q *queue) setAside(groups []*group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, g := range groups {
		k := g.first.key
		q.hold(g)
		for g := q.takeOff(k); g != nil; g = g.behind {
			q.hold(g)
		}
	}
}

func (q *queue) hold(g *group) {
	for w := g.first; w != nil; {
		next := w.next
		w.next = nil
		q.Dispatcher.hold(w)
		w = next
	}
}

// split asks again for the requests of a group whose sum did not fit: before later ones of
// their key, and without those that this decision denies. What is asked first fits by the
// state as decided, but not all of it: a sum is rounded once and its parts once each. So each
// time at least one request is answered or leaves the group.
func (q *queue) split(g *group) {
	k, rules, o, w := g.first.key, g.Query.Rules, g.Outcome, g.first
	first, callers := w, g.callersOfAll
	level := o.View.Level(&rules, o.UpdatedAt)
	fit := func(op *store.Op) float64 { return algorithm.Fit(op.Ceiling(), level, op.Cost) }
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
