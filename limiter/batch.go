package limiter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// batches decides asks outside of transactions, many in one statement when
// many come at once. A caller that finds a statement to spare runs one of its
// own; those that arrive while all are in flight share the next. So nobody
// waits for company, and there is no timer and no idle goroutine.
type batches struct {
	store   postgres
	config  *Config
	waiting atomic.Int64   // callers
	running sync.WaitGroup // statements in flight
	// laneWidth is how many connections may wait for held rows, in each line.
	laneWidth int
	lines     [2 * len(algorithms)]line
}

func newBatches(store postgres, config *Config, connections int32) *batches {
	b := &batches{store: store, config: config, laneWidth: max(1, int(connections)/4)}
	for i := range b.lines {
		b.lines[i] = line{batches: b, slots: map[slotKey]*slot{}, held: map[slotKey]*slot{}}
	}
	for i, a := range algorithms {
		b.lines[2*i].table, b.lines[2*i].commit = tables[a], commitDurable
		b.lines[2*i+1].table, b.lines[2*i+1].commit = tables[a], commitRelaxed
	}
	return b
}

// line is the queue of one algorithm's asks of one durability: what may share
// a statement. Lines never wait for each other.
type line struct {
	*batches
	table  *table
	commit string

	mu       sync.Mutex
	closed   bool
	inFlight int // statements, those of the lane apart
	queue    []*slot
	slots    map[slotKey]*slot // the queue by key

	held  map[slotKey]*slot // keys that somebody else's transaction holds
	lane  []*slot           // those of them whose turn has not come
	inOwn int               // lone statements in flight for held keys
}

type slotKey struct{ policy, key string }

// slot is what waits for one key. A key occurs once per statement, so what
// cannot be merged waits for the next.
type slot struct {
	slotKey
	rows []*row
}

// row is a row of a TakeMany: equal asks, in the order of their arrival.
type row struct {
	q      *question
	askers []*asker
	sent   bool
}

// asker is a caller that waits for its answer.
type asker struct {
	row     *row
	ready   chan struct{}
	timeout *time.Timer
	left    bool // before it was sent: it consumes nothing
	outcome outcome
	err     error
}

var askers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &asker{ready: make(chan struct{}, 1), timeout: t}
}}

func (b *batches) take(ctx context.Context, q *question) (outcome, error) {
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("pglimit: %w", ctx.Err())
	}
	l := &b.lines[2*q.algorithm.index()]
	if q.commit == commitRelaxed {
		l = &b.lines[2*q.algorithm.index()+1]
	}
	k := slotKey{q.policy, q.key}
	enqueue, timeout := l.enqueue, l.config.Timeout
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return outcome{}, ErrClosed
	}
	if l.inFlight < b.config.BatchStatements && len(l.queue) == 0 && l.held[k] == nil {
		l.inFlight++
		b.running.Add(1)
		l.mu.Unlock()
		o, err := l.alone(ctx, q)
		l.release()
		if err != errHeld {
			return o, err
		}
		l.mu.Lock()
		enqueue = l.enqueueHeld
		if timeout > 0 {
			timeout = max(1, timeout-heldAfter)
		}
	}
	if l.waiting.Add(1) > int64(l.config.BatchWaiting) {
		l.mu.Unlock()
		l.waiting.Add(-1)
		return outcome{}, fmt.Errorf("%w: %d callers wait for the database (Config.BatchWaiting)", ErrOverloaded, l.config.BatchWaiting)
	}
	a := enqueue(k, q)
	l.mu.Unlock()
	defer l.waiting.Add(-1)
	return l.wait(ctx, a, timeout)
}

// alone runs one ask on its caller's goroutine.
func (l *line) alone(ctx context.Context, q *question) (outcome, error) {
	return l.config.bounded(ctx, func(ctx context.Context) (o outcome, err error) {
		q.lockTimeout = milliseconds(heldAfter)
		o, err = l.store.decide(ctx, q, held(l.table.take))
		q.lockTimeout = ""
		return o, err
	})
}

// release gives the statement in flight on to those who wait, if any.
func (l *line) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		go l.drain()
		return
	}
	l.inFlight--
	l.running.Done()
}

// wait waits for the answer as long as the caller can.
func (l *line) wait(ctx context.Context, a *asker, timeout time.Duration) (outcome, error) {
	var late <-chan time.Time
	if timeout > 0 {
		a.timeout.Reset(timeout)
		late = a.timeout.C
	}
	select {
	case <-a.ready:
		o, err := a.outcome, a.err
		a.timeout.Stop()
		*a = asker{ready: a.ready, timeout: a.timeout}
		askers.Put(a)
		return o, err
	case <-ctx.Done():
		l.leave(a)
		return outcome{}, fmt.Errorf("pglimit: %w", ctx.Err())
	case <-late:
		l.leave(a)
		return outcome{}, l.config.timedOut(fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded))
	}
}

// leave takes a caller off the queue if its ask was not sent yet.
func (l *line) leave(a *asker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.timeout.Stop()
	a.left = !a.row.sent
}

// enqueue puts an ask where its key waits; l.mu is locked. If the queue was
// empty, statements are in flight that will come for it.
func (l *line) enqueue(k slotKey, q *question) *asker {
	a := askers.Get().(*asker)
	s := l.held[k]
	if s == nil {
		s = l.slots[k]
	}
	if s == nil {
		s = &slot{slotKey: k}
		l.slots[k] = s
		l.queue = append(l.queue, s)
	}
	if n := len(s.rows); n > 0 && s.rows[n-1].admits(q) {
		a.row = s.rows[n-1]
	} else {
		a.row = &row{q: q}
		s.rows = append(s.rows, a.row)
	}
	a.row.askers = append(a.row.askers, a)
	return a
}

// enqueueHeld puts an ask into the lane, whose row was found held.
func (l *line) enqueueHeld(k slotKey, q *question) *asker {
	a := askers.Get().(*asker)
	a.row = &row{q: q, askers: []*asker{a}}
	l.hold(k, a.row)
	return a
}

// admits tells whether q may be counted into the row. A row whose denial
// blocks the key has no more asks than can pass, so that the statement sees
// each denial.
func (r *row) admits(q *question) bool {
	return !r.sent && r.q.cost == q.cost && r.q.rules == q.rules &&
		(q.blockFor == 0 || float64(len(r.askers)) < free(q.capacity, 0, q.cost))
}

// prepare readies a row for a statement: those who left are out of it. It
// tells whether anybody is still there.
func (r *row) prepare() bool {
	here := r.askers[:0]
	for _, a := range r.askers {
		if !a.left {
			here = append(here, a)
		}
	}
	r.askers, r.sent = here, true
	return len(here) > 0
}

// next takes the next batch off the queue: one row of each key.
func (l *line) next() []*row {
	var batch []*row
	var later []*slot
	taken := 0
	for _, s := range l.queue {
		if len(batch) == l.config.BatchRows {
			break
		}
		taken++
		r := s.rows[0]
		s.rows = s.rows[1:]
		if len(s.rows) > 0 {
			later = append(later, s)
		} else {
			delete(l.slots, s.slotKey)
		}
		if r.prepare() {
			batch = append(batch, r)
		}
	}
	rest := copy(l.queue, l.queue[taken:])
	clear(l.queue[rest:])
	l.queue = append(l.queue[:rest], later...)
	return batch
}

// share is what an outcome of n equal asks is for the i-th of them: as if
// they had been decided one after the other.
func (r *row) share(o outcome, i int) outcome {
	granted := max(0, int(o.granted))
	switch {
	case i < granted:
		o.blockedUntil = 0
		if last := granted - 1; i < last {
			o.view = o.view.less(float64(r.q.cost * float64(last-i)))
		}
		o.granted = 1
	case o.granted == blocked:
	case i > granted && o.blockedUntil > o.updatedAt:
		o.granted = blocked // by the denial before
	default:
		o.granted = 0
	}
	return o
}

func (r *row) answer(o outcome) {
	for i, a := range r.askers {
		a.outcome = r.share(o, i)
		a.ready <- struct{}{}
	}
}

func (r *row) fail(err error) {
	for _, a := range r.askers {
		a.err = err
		a.ready <- struct{}{}
	}
}

// close refuses new asks and waits until those that came before have their
// answers.
func (b *batches) close() {
	for i := range b.lines {
		l := &b.lines[i]
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
	}
	b.running.Wait()
}

// errHeld says that a row is locked by somebody who does not let go.
var errHeld = errors.New("pglimit: the key's row is held")

// count is how many asks a row has, as the statement takes it.
func (r *row) count() float64 { return math.Min(float64(len(r.askers)), maxUnits) }
