// Package coalesce lets concurrent requests share statements. While one statement is
// in flight, new requests queue and are sent together in the next one. Results are the
// same as if each request had been sent alone, in order of arrival.
package coalesce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Options sets up a Store. There are no defaults.
type Options struct {
	Rows       int           // keys in one statement, at most
	Statements int           // in flight at once for each algorithm and Commit, at most
	Waiting    int           // callers that wait for a statement, at most
	Timeout    time.Duration // how long a caller waits; none if not positive
	Patient    int           // statements that wait for locked rows at once, at most
	Now        func() *int64 // the caller's clock for a statement; if it returns nil, the store's
}

// Store is a store.Store that coalesces each Take of a Query that is Shared. All other
// methods are the inner store's. If no statement is in flight, a caller sends its own
// immediately; callers that arrive meanwhile share the next. So no request waits for
// others to arrive, and an idle Store has no goroutine. It is safe for concurrent use.
type Store struct {
	store.Store
	many    store.Many
	options Options
	waiting atomic.Int64   // callers
	running sync.WaitGroup // statements in flight
	// patient has room for the statements that may wait for locked rows at the same time,
	// in all lines: each uses a connection that other keys could use.
	patient chan struct{}
	waiters sync.Pool // of this Store: a timer made in a test's synthetic time must stay in it
	lines   [2 * len(algorithm.Names)]line
}

// New returns a Store over inner. Statements for many keys are sent by many.
func New(inner store.Store, many store.Many, o Options) *Store {
	s := &Store{Store: inner, many: many, options: o, patient: make(chan struct{}, max(1, o.Patient))}
	for i := range s.lines {
		s.lines[i] = line{Store: s, last: map[slot]*row{}, locked: map[slot]*lockedKey{}}
	}
	return s
}

// Waiting returns the number of callers that wait for a statement now.
func (s *Store) Waiting() int { return int(s.waiting.Load()) }

// Close makes later Takes return ErrClosed and waits for the answers of earlier ones.
func (s *Store) Close() {
	for i := range s.lines {
		l := &s.lines[i]
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
	}
	s.running.Wait()
}

// Take is store.Store's. If ctx or Options.Timeout ends while q waits in the queue, q is
// not sent; if it is in flight, it may be counted.
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
	closed   bool
	inFlight int // statements, except the lane's

	// queue has the next row of each key, in order of arrival. The key's other rows are
	// behind it. A statement has each key once, so requests that cannot be merged wait
	// for the next statement.
	queue []*row
	last  map[slot]*row // the last row of each key in the queue

	locked map[slot]*lockedKey // keys whose rows other transactions have locked
	lane   []*lockedKey        // the locked keys that wait for their turn
	inLane int                 // goroutines that send for them
}

// line returns the line of q.
func (s *Store) line(q *store.Query) *line {
	i := 2 * q.Algorithm.Index()
	if q.Commit == store.Relaxed {
		i++
	}
	return &s.lines[i]
}

// slot is a key's place in a line.
type slot struct{ policy, key string }

func slotOf(q *store.Query) slot { return slot{q.Policy, q.Key} }

// take decides q.
func (l *line) take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	k, timeout := slotOf(q), l.options.Timeout
	l.mu.Lock()
	_, isLocked := l.locked[k]
	var w *waiter
	if l.inFlight == 0 && !isLocked && !l.closed {
		l.inFlight++
		l.running.Add(1)
		defer l.running.Done()
		l.mu.Unlock()
		q.LockWait = patience
		o, err := l.Store.Store.Take(ctx, q)
		l.mu.Lock()
		l.release()
		if err != store.ErrLocked {
			l.mu.Unlock()
			return o, err
		}
		if timeout > 0 {
			timeout = max(1, timeout-patience)
		}
		w = l.waiter(q)
		l.setAside(w.ownRow())
	} else if err := l.admit(); err != nil {
		l.mu.Unlock()
		return store.Outcome{}, err
	} else {
		w = l.waiter(q)
		l.enqueue(k, w)
	}
	l.waiting.Add(1)
	l.mu.Unlock()
	defer l.waiting.Add(-1)
	return l.wait(ctx, w, timeout)
}

// admit returns an error unless one more caller may wait.
func (l *line) admit() error {
	refusal, most := l.many.Refuses(), l.options.Waiting
	switch {
	case l.closed:
		return store.ErrClosed
	case refusal != nil:
		return refusal
	case l.waiting.Load() >= int64(most):
		return fmt.Errorf("%w: %d callers wait for the database (Config.BatchWaiting)", store.ErrOverloaded, most)
	}
	return nil
}

// release ends a statement in flight and starts another if requests wait. l.mu is locked.
func (l *line) release() {
	l.inFlight--
	if len(l.queue) > 0 {
		l.start()
	}
}

// start puts one more statement in flight. l.mu is locked.
func (l *line) start() {
	l.inFlight++
	l.running.Add(1)
	go l.drain()
}

// wait waits for w's answer until ctx or the timeout ends. Each caller has its own timer:
// the statement in flight may take Options.Timeout, and a caller must not wait for that
// and then for its own.
func (l *line) wait(ctx context.Context, w *waiter, timeout time.Duration) (store.Outcome, error) {
	var late <-chan time.Time
	if timeout > 0 {
		w.timeout.Reset(timeout)
		defer w.timeout.Stop()
		late = w.timeout.C
	}
	select {
	case <-w.ready:
		o, err := w.outcome, w.err
		l.free(w)
		return o, err
	case <-ctx.Done():
		l.leave(w)
		return store.Outcome{}, store.EndedContext(ctx)
	case <-late:
		l.leave(w)
		return store.Outcome{}, store.TimedOut(fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded), l.options.Timeout)
	}
}

// leave takes a caller out of its row. If a statement with the row is in flight, the
// caller may still be counted, unless the statement finds the row locked.
func (l *line) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.left = true
}

// enqueue adds w to its key's rows. A statement in flight will send it later. l.mu is
// locked.
func (l *line) enqueue(k slot, w *waiter) {
	if h := l.locked[k]; h != nil {
		h.last = h.last.add(w)
		return
	}
	last := l.last[k]
	if last == nil {
		r := w.ownRow()
		l.last[k] = r
		l.queue = append(l.queue, r)
		if l.inFlight < l.options.Statements && len(l.queue) >= splitRows {
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
	waiting := l.queue
	n := min(len(waiting), l.options.Rows)
	var behind []*row
	for _, r := range waiting[:n] {
		if r.behind != nil {
			behind = append(behind, r.behind)
			r.behind = nil
		} else {
			delete(l.last, slotOf(r.Query))
		}
		if r.prepare() {
			batch = append(batch, r)
		}
	}
	rest := copy(waiting, waiting[n:])
	clear(waiting[rest:])
	l.queue = append(waiting[:rest], behind...)
	return batch
}

// waiter is a caller with its query. After a send on ready it belongs to its caller again.
type waiter struct {
	query   *store.Query
	own     row     // if it is the first of its row
	next    *waiter // in its row
	left    bool    // the caller has gone
	outcome store.Outcome
	err     error

	ready   chan struct{}
	timeout *time.Timer
}

func (s *Store) waiter(q *store.Query) *waiter {
	w, ok := s.waiters.Get().(*waiter)
	if !ok {
		t := time.NewTimer(time.Hour)
		t.Stop()
		w = &waiter{ready: make(chan struct{}, 1), timeout: t}
	}
	w.query = q
	return w
}

// free returns a waiter that has its answer to the pool.
func (s *Store) free(w *waiter) {
	*w = waiter{ready: w.ready, timeout: w.timeout}
	s.waiters.Put(w)
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
		w.ready <- struct{}{}
		w = next
	}
	first.ready <- struct{}{}
}
