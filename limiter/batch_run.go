package limiter

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/db"
)

// heldAfter is how long a statement waits for a row's lock until it is taken
// for held: it would keep its neighbours waiting.
const heldAfter = 10 * time.Millisecond

// heldTries is how often a batch is tried in which no held row can be found.
const heldTries = 3

var columnsPool = sync.Pool{New: func() any { return new(columns) }}

// drain sends batches until nobody waits.
func (l *line) drain() {
	defer l.running.Done()
	for {
		l.mu.Lock()
		batch := l.next()
		if len(batch) == 0 && len(l.queue) == 0 {
			l.inFlight--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.run(batch, 1)
		// Those who were answered ask again, often: let them, so that the next
		// statement has more to carry.
		runtime.Gosched()
	}
}

// run decides a batch, whatever becomes of its statement.
func (l *line) run(batch []*row, try int) {
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, func(a, b *row) int {
		return cmp.Or(strings.Compare(a.q.policy, b.q.policy), strings.Compare(a.q.key, b.q.key))
	})
	ctx, cancel := l.detached(l.config.Timeout)
	defer cancel()
	outcomes, err := l.send(ctx, batch, milliseconds(heldAfter))
	switch {
	case err == nil:
		for i, r := range batch {
			r.answer(outcomes[i])
		}
	case err == errHeld:
		l.part(ctx, batch, try)
	case dataError(err) && len(batch) > 1:
		for _, r := range batch {
			l.run([]*row{r}, try)
		}
	default:
		for _, r := range batch {
			r.fail(err)
		}
	}
}

// detached is a context for many callers: none of them can cancel it.
func (l *line) detached(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.Background(), func() {}
	}
	return context.WithTimeoutCause(context.Background(), timeout, errTimeout)
}

// send runs one statement for a batch, whose rows are in lock order.
func (l *line) send(ctx context.Context, batch []*row, lockTimeout string) (outcomes []outcome, err error) {
	c := columnsPool.Get().(*columns)
	defer columnsPool.Put(c)
	c.reset()
	for _, r := range batch {
		c.add(r.q, r.count())
	}
	c.commit, c.lockTimeout = l.commit, lockTimeout
	if l.config.Now != nil {
		now := l.config.Now().UnixMicro()
		c.now = &now
	}
	err = l.store.runner.do(ctx, func(tx db.DBTX) (err error) {
		outcomes, err = l.table.takeMany(ctx, tx, c)
		return asHeld(err)
	})
	if err != nil && err != errHeld {
		err = translate(err, false)
	}
	return outcomes, err
}

// part runs the rows of a batch again that nobody holds, and sends the others
// to the lane.
func (l *line) part(ctx context.Context, batch []*row, try int) {
	var p db.TokenBucketHeldParams
	for _, r := range batch {
		p.Policies = append(p.Policies, r.q.policy)
		p.Keys = append(p.Keys, r.q.key)
	}
	var found []db.TokenBucketHeldRow
	err := l.store.runner.do(ctx, func(tx db.DBTX) (err error) {
		found, err = l.table.held(ctx, tx, p)
		return err
	})
	if err != nil {
		for _, r := range batch {
			r.fail(translate(err, false))
		}
		return
	}
	var free, held []*row
	for _, r := range batch {
		is := db.TokenBucketHeldRow{Policy: r.q.policy, Key: r.q.key}
		if try == heldTries || slices.Contains(found, is) {
			held = append(held, r)
		} else {
			free = append(free, r)
		}
	}
	l.mu.Lock()
	for _, r := range held {
		l.hold(slotKey{r.q.policy, r.q.key}, r)
	}
	l.mu.Unlock()
	l.run(free, try+1)
}

// hold gives a row to the lane: lone statements, few at a time, that wait for
// held rows while the others go on. l.mu is locked.
func (l *line) hold(k slotKey, r *row) {
	r.sent = false
	s := l.held[k]
	if s == nil {
		s = &slot{slotKey: k}
		l.held[k] = s
		l.lane = append(l.lane, s)
	}
	s.rows = append(s.rows, r)
	if queued := l.slots[k]; queued != nil { // who came meanwhile comes after
		s.rows = append(s.rows, queued.rows...)
		delete(l.slots, k)
		l.queue = slices.DeleteFunc(l.queue, func(q *slot) bool { return q == queued })
	}
	if l.inOwn < l.laneWidth {
		l.inOwn++
		l.running.Add(1)
		go l.own()
	}
}

// own is the lane.
func (l *line) own() {
	defer l.running.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lane) > 0 {
		s := l.lane[0]
		l.lane = slices.Delete(l.lane, 0, 1)
		for len(s.rows) > 0 {
			r := s.rows[0]
			s.rows = s.rows[1:]
			if !r.prepare() {
				continue
			}
			l.mu.Unlock()
			l.patiently(r)
			l.mu.Lock()
			break
		}
		// One has returned: the row is free, or its callers have given up. Who
		// came meanwhile is asked for with all others.
		delete(l.held, s.slotKey)
		if len(s.rows) > 0 {
			l.slots[s.slotKey] = s
			l.queue = append(l.queue, s)
			if l.inFlight < l.config.BatchStatements {
				l.inFlight++
				l.running.Add(1)
				go l.drain()
			}
		}
	}
	l.inOwn--
}

// patiently waits for a row's lock as long as its callers do. The server ends
// the wait, since a cancelled context would close the connection.
func (l *line) patiently(r *row) {
	lockTimeout := ""
	if t := l.config.Timeout; t > 0 {
		lockTimeout = milliseconds(max(t, time.Millisecond))
	}
	ctx, cancel := l.detached(2 * l.config.Timeout)
	defer cancel()
	outcomes, err := l.send(ctx, []*row{r}, lockTimeout)
	switch {
	case err == errHeld:
		r.fail(l.config.timedOut(fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded)))
	case err != nil:
		r.fail(err)
	default:
		r.answer(outcomes[0])
	}
}

// asHeld tells a lock that was waited for too long from a conflict that is
// worth another try.
func asHeld(err error) error {
	if sqlState(err) == lockNotAvailable {
		return errHeld
	}
	return err
}

// held is a statement that returns errHeld.
func held(f func(context.Context, db.DBTX, *question) (outcome, error)) func(context.Context, db.DBTX, *question) (outcome, error) {
	return func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		o, err := f(ctx, tx, q)
		return o, asHeld(err)
	}
}

// milliseconds is a time as lock_timeout takes it.
func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }
