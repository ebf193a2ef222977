package dispatch

import (
	"errors"
	"slices"

	"github.com/pglimit/pglimit/internal/store"
)

// serials has the requests that share no statement, by key. The keys take turns, so that a
// contended key does not keep the others out. Requests that wait share transactions, and with them
// round trips and flushes. Dispatcher.mu guards it.
type serials struct {
	most     int // transactions in flight
	running  int // goroutines that send
	keys     map[key]*serial
	ready    []*serial // those with a request to send and none in flight
	overlaps []*serial // those whose second transaction may be sent if no other key waits
	reads    int       // requests that read
}

// serial is the requests of one key, in order of arrival.
type serial struct {
	key      key
	waiters  []*waiter
	inFlight int // transactions
	// trusted is the number of grants since the last denial. A denial of the first request would
	// answer further ones. At most trusted of these share its transaction.
	trusted int
	// Whether it is in ready and overlaps. It may have no turn there by now.
	isReady, isOverlap bool
}

// mostOverlapping is the number of transactions for one key that may be in flight if no other key
// waits: while one has the row's lock, the other waits for it.
const mostOverlapping = 2

// maySend reports whether s has a request and none in flight; reads do not wait for each other.
func (s *serial) maySend() bool { return len(s.waiters) > 0 && (s.key.reads || s.inFlight == 0) }

// mayOverlap reports whether s has a request that may be in flight with another.
func (s *serial) mayOverlap() bool { return len(s.waiters) > 0 && s.inFlight < mostOverlapping }

// add queues a request behind those of its key.
func (all *serials) add(d *Dispatcher, w *waiter) {
	s := all.keys[w.key]
	if s == nil {
		s = &serial{key: w.key}
		all.keys[w.key] = s
	}
	s.waiters = append(s.waiters, w)
	if s.key.reads {
		all.reads++
	}
	all.list(s)
	all.start(d)
}

// start starts another goroutine that sends, if there may be one.
func (all *serials) start(d *Dispatcher) {
	if all.running < all.most {
		all.running++
		d.start(d.sendSerials)
	}
}

// list gives s its turn if it has a request to send.
func (all *serials) list(s *serial) {
	switch {
	case s.maySend():
		if !s.isReady {
			s.isReady = true
			all.ready = append(all.ready, s)
		}
	case s.mayOverlap():
		if !s.isOverlap {
			s.isOverlap = true
			all.overlaps = append(all.overlaps, s)
		}
	case len(s.waiters) == 0 && s.inFlight == 0 && all.keys[s.key] == s:
		delete(all.keys, s.key)
	}
}

// pop takes the first of a queue off it.
func pop[T any](queue []*T) (*T, []*T) {
	first := queue[0]
	queue[0] = nil
	return first, queue[1:]
}

// together is requests that are sent together, and the keys that they are of.
type together struct {
	waiters []*waiter
	serials []*serial
	known   int // of the last key: requests that a denial would answer
}

// The number of requests for one key in a transaction. They keep the row locked, and the
// statements of other processes wait for it for UsualLockWait.
const (
	ofOneKey  = 64
	ofEachKey = 16 // if other keys wait
	// A key for which more wait shares no transaction with other keys, which would wait for
	// its row.
	ofSharedKey = 4
)

// next takes the next request off its key's queue, and those that share its transaction. It
// reports whether there is one. d.mu is locked.
//
// Requests share a transaction if more wait than may be in flight: then they would wait for
// each other in any case. A key's requests are in the order of arrival. Requests for several
// keys are in lock order, so that no two transactions wait for each other. Where a denial
// that is remembered answers those behind it, only as many share as may be granted.
func (d *Dispatcher) next(b *together) bool {
	all := &d.serial
	clear(b.waiters)
	clear(b.serials)
	*b = together{waiters: b.waiters[:0], serials: b.serials[:0]}
	for {
		var s *serial
		may := (*serial).maySend
		switch {
		case len(all.ready) > 0:
			s, all.ready = pop(all.ready)
			s.isReady = false
		case len(all.overlaps) > 0:
			s, all.overlaps = pop(all.overlaps)
			s.isOverlap = false
			may = (*serial).mayOverlap
		default:
			return false
		}
		if may(s) && all.take(b, s, 1) {
			if w := b.waiters[0]; w.joins(w) && d.Share && d.Rows > 1 && d.db.Pipelines() {
				all.fill(b, s, d.Rows)
			}
			all.list(s)
			return true
		}
		all.list(s)
	}
}

// take takes requests off s until the batch has n. It reports whether it took any.
func (all *serials) take(b *together, s *serial, n int) bool {
	last := len(b.serials) > 0 && b.serials[len(b.serials)-1] == s
	had, known := len(b.waiters), 0
	if last {
		known = b.known
	}
	for len(b.waiters) < n && len(s.waiters) > 0 {
		w := s.waiters[0]
		if len(b.waiters) > 0 && (!w.joins(b.waiters[0]) || w.op.Known != nil && known > s.trusted) {
			break
		}
		_, s.waiters = pop(s.waiters)
		if s.key.reads {
			all.reads--
		}
		if w.gone() {
			continue
		}
		if w.op.Known != nil {
			known++
		}
		w.state, w.serial = sent, s
		b.waiters = append(b.waiters, w)
	}
	if len(b.waiters) == had {
		return false
	}
	if b.known = known; !last {
		b.serials = append(b.serials, s)
		s.inFlight++
	}
	return true
}

// joins reports whether w may share a transaction with first.
func (w *waiter) joins(first *waiter) bool {
	return w.op.Shares() && first.op.Shares() && !w.alone && w.op.Commit == first.op.Commit
}

// relax lets ops that are sent together not wait for the disk if all of them are lazy.
func relax(ops ...*store.Op) {
	for _, op := range ops {
		if !op.Lazy() || op.Commit != store.Durable {
			return
		}
	}
	for _, op := range ops {
		op.Commit = store.Relaxed
	}
}

// fill adds to a batch, which has a request of s, its share of the requests that wait: with it
// all of them can be in flight at once. It is at most share.
func (all *serials) fill(b *together, s *serial, share int) {
	ofKey := ofOneKey
	if len(all.ready) > 0 {
		ofKey = ofEachKey
	}
	keys := (len(all.ready) + 1) / all.most
	switch {
	case s.key.reads:
		n := min(share, (all.reads+1)/all.most)
		all.take(b, s, min(n, ofKey))
		all.gather(b, n, len(all.ready)+1, func(t *serial) bool { return t.key.reads })
	case keys > 1 && len(s.waiters) < ofSharedKey:
		all.take(b, s, min(share, ofSharedKey))
		all.gather(b, share, keys, func(t *serial) bool { return !t.key.reads && t.maySend() && len(t.waiters) <= ofSharedKey })
		slices.SortStableFunc(b.waiters, func(v, w *waiter) int { return v.key.compare(&w.key) })
	case len(s.waiters) > 0: // all wait for the row of one key
		transactions := 1
		if len(all.ready) == 0 {
			transactions += min(mostOverlapping-s.inFlight, all.most-all.running)
		}
		all.take(b, s, min(share, ofKey, (len(s.waiters)+transactions)/transactions))
	}
}

// gather adds requests of other keys in turn until the batch has n requests, or those of keys keys.
func (all *serials) gather(b *together, n, keys int, of func(*serial) bool) {
	i, stay := 0, 0
	for most := 4 * n; i < len(all.ready) && len(b.waiters) < n && len(b.serials) < keys && stay < most; i++ {
		s := all.ready[i]
		if len(s.waiters) == 0 || !of(s) || !s.waiters[0].joins(b.waiters[0]) {
			all.ready[stay] = s
			stay++
			continue
		}
		s.isReady = false
		all.take(b, s, min(n, len(b.waiters)+ofEachKey))
		all.list(s)
	}
	copy(all.ready[i-stay:i], all.ready[:stay])
	clear(all.ready[:i-stay])
	all.ready = all.ready[i-stay:]
}

// sendSerials sends requests until none waits.
func (d *Dispatcher) sendSerials() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for b := new(together); d.next(b); {
		var o outcomes
		if w := b.waiters[0]; len(b.waiters) > 1 {
			d.sendTogether(b, &o)
		} else if tried := d.attempt(w, UsualLockWait); tried && w.err == store.ErrLocked {
			o.locked = b.waiters
		} else if tried || w.err != nil {
			o.answered = b.waiters
		}
		d.settle(b, &o)
	}
	d.serial.running--
	d.done()
}

// outcomes is what became of the requests of a batch. Those in none have no caller.
type outcomes struct {
	answered []*waiter
	known    []*waiter // whose answer is known
	locked   []*waiter // whose row is
	again    []*waiter // to be sent alone
}

// settle lists the keys of a batch again, and brings the requests on their way. d.mu is locked.
func (d *Dispatcher) settle(b *together, o *outcomes) {
	for _, s := range b.serials {
		s.inFlight--
	}
	for i, w := range o.locked { // those of a key follow each other
		d.hold(w)
		if i+1 == len(o.locked) || o.locked[i+1].serial != w.serial {
			for _, behind := range w.serial.waiters {
				d.hold(behind)
			}
			w.serial.waiters = nil
		}
	}
	for _, w := range slices.Backward(o.again) { // to the front, in their order
		w.state, w.alone = queued, true
		w.serial.waiters = slices.Insert(w.serial.waiters, 0, w)
		if w.key.reads {
			d.serial.reads++
		}
		d.serial.start(d)
	}
	denied := func(w *waiter) bool { return !w.op.Granted() }
	for _, w := range o.answered {
		if w.decided() && !denied(w) {
			w.serial.trusted = min(w.serial.trusted+1, ofOneKey)
		}
	}
	for _, w := range o.answered {
		if w.decided() && denied(w) {
			w.serial.trusted = 0
		}
	}
	for _, s := range b.serials {
		d.serial.list(s)
	}
	for _, w := range o.known {
		w.answer(store.ErrKnown, 0)
	}
	for _, w := range o.answered {
		w.answer(w.err, len(o.answered))
	}
}

// decided reports whether a request that a denial would have answered was decided.
func (w *waiter) decided() bool {
	return w.err == nil && w.op.Known != nil && w.op.Outcome.Decided
}

// sendTogether sends requests as one transaction. If that was rolled back, because a row was
// locked or a value was bad, nothing was decided: the requests for a locked key are set
// aside, and each other one is sent alone. So a bad neighbour delays a request once. d.mu is
// locked, but not while it sends.
func (d *Dispatcher) sendTogether(b *together, o *outcomes) {
	d.mu.Unlock()
	known := make([]bool, len(b.waiters))
	for i, w := range b.waiters {
		known[i] = w.op.Known != nil && w.op.Known()
	}
	d.mu.Lock()
	ctx := d.detach()
	defer ctx.Cancel()
	wait := UsualLockWait
	if b.waiters[0].key.reads {
		wait = 0
	}
	var waiters []*waiter
	var ops []*store.Op
	for i, w := range b.waiters {
		switch {
		case known[i]:
			o.known = append(o.known, w)
		case !w.gone():
			ctx.carry(w)
			w.op.LockWait = wait
			waiters, ops = append(waiters, w), append(ops, w.op)
		}
	}
	if len(ops) == 0 {
		return
	}
	relax(ops...)
	d.mu.Unlock()
	errs, err := d.db.Pipeline(ctx, wait, ops)
	err = d.timed(ctx, err)
	d.mu.Lock()
	var part *store.PartError
	switch {
	case err == nil:
		for i, w := range waiters {
			if errors.Is(errs[i], store.ErrAlone) {
				o.again = append(o.again, w)
			} else {
				w.err = errs[i]
				o.answered = append(o.answered, w)
			}
		}
	case err == store.ErrAlone, err == store.ErrLocked: // a commit that notifies waits for others
		o.again = waiters
	case errors.As(err, &part):
		failed := waiters[part.Index]
		for _, w := range waiters { // a Settle's reservation may be locked, and its key free
			if part.Err == store.ErrLocked && w.key == failed.key {
				w.alone = w.alone || w == failed
				o.locked = append(o.locked, w)
			} else {
				o.again = append(o.again, w)
			}
		}
	default:
		for _, w := range waiters {
			w.err = err
		}
		o.answered = waiters
	}
}
