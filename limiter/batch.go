package limiter

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// batches decides asks outside of transactions, many in one statement when
// many come at once. A caller that finds no statement in flight runs one of its
// own; those that arrive meanwhile share the next. So nobody waits for company,
// and there is no idle goroutine, and no timer but that of Config.Timeout.
type batches struct {
	store   postgres
	breaker *breaker
	config  *Config
	waiting atomic.Int64   // callers
	running sync.WaitGroup // statements in flight
	// patient has room for as many as may wait for held rows at once, in all
	// lines: each has a connection that others could use.
	patient chan struct{}
	lines   [2 * len(algorithms)]line
}

// newBatches is nil where each decision is a statement of its own.
func newBatches(breaker *breaker, config *Config, connections int) (*batches, error) {
	for name, n := range map[string]int{"BatchStatements": config.BatchStatements, "BatchWaiting": config.BatchWaiting} {
		if n < 0 {
			return nil, invalid("Config."+name, strconv.Itoa(n), "must not be negative; a negative BatchRows is off")
		}
	}
	if config.BatchRows < 0 {
		return nil, nil
	}
	b := &batches{store: postgres{runner: breaker}, breaker: breaker, config: config, patient: make(chan struct{}, max(1, connections/4))}
	for i, a := range algorithms {
		for j, commit := range [...]string{commitDurable, commitRelaxed} {
			b.lines[2*i+j] = line{
				batches: b, table: tables[a], take: orHeld(tables[a].take), commit: commit,
				last: map[slot]*row{}, held: map[slot]*heldKey{},
			}
		}
	}
	return b, nil
}

// line is the queue of one algorithm's asks of one durability: what may share
// a statement. Lines never wait for each other.
type line struct {
	*batches
	table  *table
	take   func(context.Context, db.DBTX, *question) (outcome, error)
	commit string

	mu       sync.Mutex
	closed   bool
	inFlight int // statements, those of the lane apart

	// The queue: of each key the row that is next, in the order of arrival. The
	// key's other rows are behind it. A key occurs once per statement, so what
	// cannot be merged waits for the next.
	queue []*row
	last  map[slot]*row // the last row of each key in the queue

	held  map[slot]*heldKey // keys that somebody else's transaction holds
	lane  []*heldKey        // those of them whose turn has not come
	inOwn int               // goroutines that ask for them
}

// slot is a key's place in a line.
type slot struct{ policy, key string }

func (q *question) slot() slot { return slot{q.policy, q.key} }

// row is a row of a TakeMany: equal asks, in the order of their arrival.
type row struct {
	q           *question // of the first
	first, tail *asker
	count       int // of askers
	behind      *row
	sent        bool
	outcome     outcome
}

// asker is a caller with its ask. It belongs to its caller again once ready has
// been sent to.
type asker struct {
	q       question
	own     row // if it is the first of its row
	row     *row
	next    *asker // in its row
	left    bool   // it is in no statement that is not sent yet
	outcome outcome
	err     error

	ready   chan struct{}
	timeout *time.Timer
}

// askerPool keeps askers for one limiter: a timer of one that a test made in
// synthetic time must not be used outside of it.
type askerPool struct{ sync.Pool }

func (p *askerPool) get() *asker {
	if a, ok := p.Get().(*asker); ok {
		return a
	}
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &asker{ready: make(chan struct{}, 1), timeout: t}
}

// free takes the asker back, unless a statement may still know it.
func (p *askerPool) free(a *asker) {
	if a.row == nil {
		*a = asker{q: question{Rules: a.q.Rules, source: a.q.source}, ready: a.ready, timeout: a.timeout}
		p.Put(a)
	}
}

func (b *batches) line(q *question) *line {
	i := 2 * q.algorithm.index()
	if q.commit == commitRelaxed {
		i++
	}
	return &b.lines[i]
}

// take decides a.q.
func (b *batches) take(ctx context.Context, a *asker) (outcome, error) {
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("pglimit: %w", ctx.Err())
	}
	l, k, timeout := b.line(&a.q), a.q.slot(), b.config.Timeout
	l.mu.Lock()
	_, isHeld := l.held[k]
	if l.inFlight == 0 && !isHeld && !l.closed {
		l.inFlight++
		b.running.Add(1)
		defer b.running.Done()
		l.mu.Unlock()
		o, err := l.alone(ctx, &a.q)
		l.mu.Lock()
		l.release()
		if err != errHeld {
			l.mu.Unlock()
			return o, err
		}
		if timeout > 0 {
			timeout = max(1, timeout-heldAfter)
		}
		l.hold(a.ownRow())
	} else if err := l.admit(); err != nil {
		l.mu.Unlock()
		return outcome{}, err
	} else {
		l.enqueue(k, a)
	}
	l.waiting.Add(1)
	l.mu.Unlock()
	defer l.waiting.Add(-1)
	return l.wait(ctx, a, timeout)
}

// admit tells whether one more may wait.
func (l *line) admit() error {
	refusal, most := l.breaker.refuses(), l.config.BatchWaiting
	switch {
	case l.closed:
		return ErrClosed
	case refusal != nil:
		return translate(refusal, false)
	case l.waiting.Load() >= int64(most):
		return fmt.Errorf("%w: %d callers wait for the database (Config.BatchWaiting)", ErrOverloaded, most)
	}
	return nil
}

// alone runs one ask on its caller's goroutine.
func (l *line) alone(ctx context.Context, q *question) (outcome, error) {
	return l.config.bounded(ctx, func(ctx context.Context) (outcome, error) {
		q.lockTimeout = heldAfterText
		return l.store.decide(ctx, q, l.take)
	})
}

// release gives the statement in flight on to those who wait, if any. l.mu is
// locked.
func (l *line) release() {
	l.inFlight--
	if len(l.queue) > 0 {
		l.start()
	}
}

// wait waits for the answer as long as the caller can.
func (l *line) wait(ctx context.Context, a *asker, timeout time.Duration) (outcome, error) {
	var late <-chan time.Time
	if timeout > 0 {
		a.timeout.Reset(timeout)
		defer a.timeout.Stop()
		late = a.timeout.C
	}
	select {
	case <-a.ready:
		a.row = nil
		return a.outcome, a.err
	case <-ctx.Done():
		l.leave(a)
		return outcome{}, fmt.Errorf("pglimit: %w", ctx.Err())
	case <-late:
		l.leave(a)
		return outcome{}, l.config.timedOut(fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded))
	}
}

// leave takes a caller off the queue. If a statement is in flight for it, it
// may be counted; not if that finds the row held.
func (l *line) leave(a *asker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.left = true
}

// start puts one more statement in flight; l.mu is locked.
func (l *line) start() {
	l.inFlight++
	l.running.Add(1)
	go l.drain()
}

// ownRow makes the asker the first of a row.
func (a *asker) ownRow() *row {
	a.own = row{q: &a.q, first: a, tail: a, count: 1}
	a.row = &a.own
	return a.row
}

// enqueue puts an ask where its key waits; l.mu is locked. Statements are in
// flight that will come for it.
func (l *line) enqueue(k slot, a *asker) {
	if h := l.held[k]; h != nil {
		h.last = h.last.add(a)
		return
	}
	last := l.last[k]
	if last == nil {
		r := a.ownRow()
		l.last[k] = r
		l.queue = append(l.queue, r)
		if l.inFlight < l.config.BatchStatements && len(l.queue) >= splitRows {
			l.start()
		}
		return
	}
	if r := last.add(a); r != last {
		l.last[k] = r
	}
}

// add puts an ask into a key's last row, or behind it. It returns the last row.
func (r *row) add(a *asker) *row {
	if !r.admits(&a.q) {
		r.behind = a.ownRow()
		return r.behind
	}
	r.tail.next, r.tail, a.row = a, a, r
	r.count++
	return r
}

// admits tells whether q may be counted into the row. A row whose denial
// blocks the key has no more asks than can pass, so that the statement sees
// each denial.
func (r *row) admits(q *question) bool {
	return !r.sent && r.q.cost == q.cost && r.q.Rules == q.Rules &&
		(q.BlockFor == 0 || float64(r.count) < algorithm.Fit(q.Capacity, 0, q.cost))
}

// prepare readies a row for a statement: those who left are out of it. It
// tells whether anybody is still there.
func (r *row) prepare() bool {
	r.sent = true
	link := &r.first
	for a := r.first; a != nil; a = a.next {
		if a.left {
			*link = a.next
			r.count--
		} else {
			link, r.tail = &a.next, a
		}
	}
	return r.count > 0
}

// next takes the next batch off the queue: one row of each key.
func (l *line) next(batch []*row) []*row {
	waiting := l.queue
	n := min(len(waiting), l.config.BatchRows)
	var behind []*row
	for _, r := range waiting[:n] {
		if r.behind != nil {
			behind = append(behind, r.behind)
			r.behind = nil
		} else {
			delete(l.last, r.q.slot())
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

// share is what an outcome of a row of equal asks is for the i-th of them: as
// if they had been decided one after the other.
func (r *row) share(o outcome, i int) outcome {
	granted := max(0, int(o.granted))
	switch {
	case i < granted:
		o.blockedUntil = 0
		if last := granted - 1; i < last {
			o.view = o.view.Less(float64(r.q.cost * float64(last-i)))
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

// answer tells everybody. The first comes last: the row may be its own.
func (r *row) answer(err error) {
	first := r.first
	first.outcome, first.err = r.share(r.outcome, 0), err
	i := 1
	for a := first.next; a != nil; i++ {
		next := a.next
		a.outcome, a.err = r.share(r.outcome, i), err
		a.ready <- struct{}{}
		a = next
	}
	first.ready <- struct{}{}
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

// errHeld says that a row is locked by somebody who does not let go. It gets to
// a caller only whose time ends at that very moment.
var errHeld = fmt.Errorf("%w: %w: another transaction holds the key's row", ErrUnavailable, context.DeadlineExceeded)
