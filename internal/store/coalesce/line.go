package coalesce

import (
	"context"
	"sync"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// line is the queue of the requests of one algorithm and Commit, which may share
// statements. Lines never wait for each other.
type line struct {
	*Store

	waiters sync.Pool // a channel made in a test's synthetic time must stay in it

	mu       sync.Mutex
	watch    *waiting.Watch
	idle     sync.Cond // nothing is in flight
	closed   bool
	inFlight int // statements, except the lane's

	// queue has the next row of each key, in order of arrival. The key's other rows are
	// behind it. A statement has each key once, so requests that cannot be merged wait
	// for the next statement.
	queue []*row
	heads map[place]*row // the rows in the queue, by key
}

// place is a key of a line.
type place struct{ policy, key string }

func placeOf(q *store.Query) place { return place{q.Policy, q.Key} }

// line returns the line of q.
func (s *Store) line(q *store.Query) *line {
	i := 2 * q.Algorithm.Index()
	if q.Commit == store.Relaxed {
		i++
	}
	return &s.lines[i]
}

// take decides op.
func (l *line) take(ctx context.Context, op *store.Op) error {
	q := &op.Query
	k := placeOf(q)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return store.ErrClosed
	}
	head := l.heads[k]
	if err := l.room.Enter(head.waiting() + l.lane.Waiting(waiting.SlotOf(q))); err != nil {
		l.mu.Unlock()
		return err
	}
	defer l.room.Exit()
	w := l.waiter(op)
	w.ticket.State = waiting.Locked
	joined := l.lane.Join(waiting.SlotOf(q), w)
	if !joined && l.inFlight == 0 && ctx.Done() == nil && l.options.Obeys {
		l.sendOwn(w)
	} else {
		if !joined {
			l.enqueue(k, head, w)
		}
		l.mu.Unlock()
	}
	if err := w.ticket.Wait(ctx); err != nil {
		return err
	}
	err := w.err
	l.free(w)
	return err
}

// sendOwn sends the caller's own statement. l.mu is locked, and unlocked after it.
func (l *line) sendOwn(w *waiter) {
	l.inFlight++
	r := w.ownRow()
	r.prepare()
	l.mu.Unlock()
	defer func() { // the application's hooks may panic, and its caller recover
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.queue) > 0 {
			go l.drain()
		} else {
			l.land()
		}
	}()
	b := batches.Get().(*batch)
	b.rows = append(b.rows[:0], r)
	l.run(b, b.rows)
	b.release()
}

// land ends a statement in flight. l.mu is locked.
func (l *line) land() {
	l.inFlight--
	if l.inFlight == 0 {
		l.idle.Broadcast()
	}
}

// start puts one more statement in flight. l.mu is locked.
func (l *line) start() {
	l.inFlight++
	go l.drain()
}

// enqueue adds w to its key's rows, of which head is the next. A statement in flight will
// send it later. l.mu is locked.
func (l *line) enqueue(k place, head *row, w *waiter) {
	w.ticket.State = waiting.Queued
	if head == nil {
		l.queueRow(k, w.ownRow())
		return
	}
	head.last = head.last.add(w)
	head.callers++
}

// queueRow adds the next row of a key that has none. l.mu is locked.
func (l *line) queueRow(k place, head *row) {
	l.heads[k] = head
	l.queue = append(l.queue, head)
	if l.inFlight == 0 || l.inFlight < l.options.Statements && len(l.queue) >= splitRows {
		l.start()
	}
}

// next takes the next batch off the queue: one row of each key. l.mu is locked.
func (l *line) next(batch []*row) []*row {
	queue := l.queue
	n := min(len(queue), l.options.Rows)
	var behind []*row
	for _, r := range queue[:n] {
		k := placeOf(r.Query)
		if next := r.behind; next != nil {
			next.last, next.callers = r.last, r.callers-r.waiters
			r.behind, l.heads[k] = nil, next
			behind = append(behind, next)
		} else {
			delete(l.heads, k)
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

// takeOff takes a key's rows off the queue and returns the first. l.mu is locked.
func (l *line) takeOff(k place) *row {
	head := l.heads[k]
	if head == nil {
		return nil
	}
	delete(l.heads, k)
	for i, r := range l.queue {
		if r == head {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			l.queue[:len(l.queue)+1][len(l.queue)] = nil
			break
		}
	}
	return head
}
