// Package coalesce lets concurrent requests share statements. While one statement is
// in flight, new requests queue and are sent together in the next one. Results are the
// same as if each request had been sent alone, in order of arrival.
package coalesce

import (
	"context"
	"sync"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// Options sets up a Store. There are no defaults.
type Options struct {
	Rows       int           // keys in one statement, at most
	Statements int           // in flight at once for each algorithm and Commit, at most
	Now        func() *int64 // the caller's clock for a statement; if it returns nil, the store's
}

// Database is what sends the shared statements.
type Database interface {
	store.Many
	Take(ctx context.Context, q *store.Query) (store.Outcome, error)
}

// Store is a store.Store that coalesces each Take of a Query that is Shared. All other
// methods are the inner store's. If no statement is in flight, a request is sent
// immediately; requests that arrive meanwhile share the next. So no request waits for
// others to arrive, and an idle Store has no goroutine. It is safe for concurrent use.
type Store struct {
	store.Store
	database Database
	options  Options
	room     *waiting.Room
	lane     *waiting.Lane
	waiters  sync.Pool // of this Store: a timer made in a test's synthetic time must stay in it
	lines    [2 * len(algorithm.Names)]line
}

// New returns a Store over inner. The callers of shared statements wait in room, and in
// lane if their row is locked.
func New(inner store.Store, d Database, room *waiting.Room, lane *waiting.Lane, o Options) *Store {
	s := &Store{Store: inner, database: d, options: o, room: room, lane: lane}
	for i := range s.lines {
		l := &s.lines[i]
		*l = line{Store: s, last: map[waiting.Slot]*row{}, callers: map[waiting.Slot]int{}}
		l.idle.L = &l.mu
	}
	return s
}

// Close makes later Takes return ErrClosed.
func (s *Store) Close() {
	for i := range s.lines {
		l := &s.lines[i]
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
	}
}

// AwaitIdle waits until no request waits or is in flight, except in the lane. It reports
// whether that was so before.
func (s *Store) AwaitIdle() (was bool) {
	was = true
	for i := range s.lines {
		l := &s.lines[i]
		l.mu.Lock()
		for l.inFlight > 0 {
			was = false
			l.idle.Wait()
		}
		l.mu.Unlock()
	}
	return was
}

// Take is store.Store's. If ctx or the room's timeout ends while q waits in the queue, q
// is not sent; if it is in flight, it may be counted.
func (s *Store) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	if !q.Shared {
		return s.Store.Take(ctx, q)
	}
	if ctx.Err() != nil {
		return store.Outcome{}, store.EndedContext(ctx)
	}
	return s.line(q).take(ctx, q)
}

// line is the queue of the requests of one algorithm and Commit, which may share
// statements. Lines never wait for each other.
type line struct {
	*Store

	mu       sync.Mutex
	idle     sync.Cond // nothing is in flight
	closed   bool
	inFlight int // statements, except the lane's

	// queue has the next row of each key, in order of arrival. The key's other rows are
	// behind it. A statement has each key once, so requests that cannot be merged wait
	// for the next statement.
	queue   []*row
	last    map[waiting.Slot]*row // the last row of each key in the queue
	callers map[waiting.Slot]int  // in the queue
}

// line returns the line of q.
func (s *Store) line(q *store.Query) *line {
	i := 2 * q.Algorithm.Index()
	if q.Commit == store.Relaxed {
		i++
	}
	return &s.lines[i]
}

// take decides q.
func (l *line) take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	k := waiting.SlotOf(q)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return store.Outcome{}, store.ErrClosed
	}
	if err := l.room.Enter(l.callers[k] + l.lane.Waiting(k)); err != nil {
		l.mu.Unlock()
		return store.Outcome{}, err
	}
	defer l.room.Exit()
	w := l.waiter(l, q)
	w.state = waiting.Locked
	if !l.lane.Join(k, w) {
		l.enqueue(k, w)
	}
	l.mu.Unlock()
	if err := l.room.Wait(ctx, w.ticket, w.leave); err != nil {
		return store.Outcome{}, err
	}
	o, err := w.outcome, w.err
	l.free(w)
	return o, err
}

// start puts one more statement in flight. l.mu is locked.
func (l *line) start() {
	l.inFlight++
	go l.drain()
}

// enqueue adds w to its key's rows. A statement in flight will send it later. l.mu is
// locked.
func (l *line) enqueue(k waiting.Slot, w *waiter) {
	w.state = waiting.Queued
	l.callers[k]++
	last := l.last[k]
	if last == nil {
		r := w.ownRow()
		l.last[k] = r
		l.queue = append(l.queue, r)
		if l.inFlight == 0 || l.inFlight < l.options.Statements && len(l.queue) >= splitRows {
			l.start()
		}
		return
	}
	if r := last.add(w); r != last {
		l.last[k] = r
	}
}

// next takes the next batch off the queue: one row of each key. l.mu is locked.
func (l *line) next(batch []*row) []*row {
	queue := l.queue
	n := min(len(queue), l.options.Rows)
	var behind []*row
	for _, r := range queue[:n] {
		k := waiting.SlotOf(r.Query)
		if r.behind != nil {
			behind = append(behind, r.behind)
			r.behind = nil
			l.callers[k] -= r.Count
		} else {
			delete(l.last, k)
			delete(l.callers, k)
		}
		if r.prepare() {
			batch = append(batch, r)
		}
	}
	rest := copy(queue, queue[n:])
	clear(queue[rest:])
	l.queue = append(queue[:rest], behind...)
	return batch
}

// waiter is a caller with its query. After its answer it belongs to its caller again.
type waiter struct {
	line    *line
	query   *store.Query
	own     row     // if it is the first of its row
	next    *waiter // in its row
	outcome store.Outcome
	err     error
	ticket  *waiting.Ticket

	// Guarded by line.mu.
	state waiting.State
	left  bool // the caller has gone
}

func (s *Store) waiter(l *line, q *store.Query) *waiter {
	w, ok := s.waiters.Get().(*waiter)
	if !ok {
		w = &waiter{ticket: waiting.NewTicket()}
	}
	w.line, w.query = l, q
	s.room.Begin(w.ticket)
	return w
}

// free returns a waiter that has its answer to the pool.
func (s *Store) free(w *waiter) {
	*w = waiter{ticket: w.ticket}
	s.waiters.Put(w)
}

// leave takes a caller out of its row. If a statement with the row is in flight, the
// caller may still be counted, unless the statement finds the row locked.
func (w *waiter) leave() waiting.State {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	w.left = true
	return w.state
}

// row is one row of a statement: equal requests, in order of arrival.
type row struct {
	store.Row
	first, tail *waiter
	behind      *row // the key's next row
	sent        bool
}

// ownRow makes w the first of a row.
func (w *waiter) ownRow() *row {
	w.own = row{Row: store.Row{Query: w.query, Count: 1}, first: w, tail: w}
	return &w.own
}

// add puts w into a key's last row, or behind it, and returns the last row.
func (r *row) add(w *waiter) *row {
	if !r.admits(w.query) {
		r.behind = w.ownRow()
		return r.behind
	}
	r.tail.next, r.tail = w, w
	r.Count++
	return r
}

// admits reports whether q may join the row. If a denial blocks the key, a row has at
// most the requests that can pass, so that the statement decides each denial.
func (r *row) admits(q *store.Query) bool {
	return !r.sent && r.Query.Cost == q.Cost && r.Query.Rules == q.Rules &&
		(q.BlockFor == 0 || float64(r.Count) < algorithm.Fit(q.Capacity, 0, q.Cost))
}

// prepare readies a row for a statement and drops callers that have left. It reports
// whether any caller remains.
func (r *row) prepare() bool {
	r.sent = true
	link := &r.first
	for w := r.first; w != nil; w = w.next {
		if w.left {
			*link = w.next
			r.Count--
		} else {
			w.state = waiting.Sent
			link, r.tail = &w.next, w
		}
	}
	return r.Count > 0
}

// share returns the outcome of the i-th request of a row, as if its requests had been
// decided one after the other.
func (r *row) share(o store.Outcome, i int) store.Outcome {
	granted := int(o.Granted)
	switch {
	case i < granted:
		o.BlockedUntil = 0
		if last := granted - 1; i < last {
			o.View = o.View.Less(float64(r.Query.Cost * float64(last-i)))
		}
		o.Granted = 1
	case o.Blocked:
	case i > granted && o.IsBlocked():
		o.Granted, o.Blocked = 0, true // by the denial before it
	default:
		o.Granted = 0
	}
	return o
}

// answer gives all callers their outcomes. The first caller is last: the row may be part
// of its waiter.
func (r *row) answer(err error) {
	first := r.first
	first.outcome, first.err = r.share(r.Outcome, 0), err
	i := 1
	for w := first.next; w != nil; i++ {
		next := w.next
		w.outcome, w.err = r.share(r.Outcome, i), err
		w.ticket.Answer()
		w = next
	}
	first.ticket.Answer()
}
