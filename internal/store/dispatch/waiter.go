package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// key is a key of one algorithm, with its reads apart: they do not wait for each other's
// locks. That of several keys, or of a reservation, has no policy.
type key struct {
	algorithm   algorithm.Name
	policy, key string
	reads       bool
}

// keyOf returns the key for whose turn op waits.
func keyOf(op *store.Op) key {
	switch op.Kind {
	case store.TakeAll, store.GetAll, store.TakeAny, store.SettleAll:
		return keyOfAll(op)
	}
	return key{op.Algorithm, op.Policy, op.Key, op.Reads()}
}

// compare compares in lock order: that of a TakeAll.
func (k *key) compare(l *key) int {
	return cmp.Or(cmp.Compare(k.algorithm.Index(), l.algorithm.Index()), strings.Compare(k.policy, l.policy), strings.Compare(k.key, l.key))
}

// state is where a request is.
type state uint8

// The states.
const (
	queued state = iota // not sent
	sent                // in flight
	locked              // another transaction has locked its row; nothing was consumed
)

// request is what a caller waits for. Dispatcher.mu guards state, statement and next.
type request struct {
	op        *store.Op
	key       key
	state     state
	statement *statement // that sent it
	err       error      // the answer
	rows      int        // requests that its statement decided

	// Of a request that shares statements:
	next  *waiter // in its group
	group group   // if it is the first of it
	// Of another:
	serial *serial // while it is in flight
	alone  bool    // it shared a transaction that did not decide it
}

// waiter is a caller with its request. After the answer it can be used again.
type waiter struct {
	request
	whole *store.Op // of its group, if that has more callers

	ready chan struct{}
	ends  time.Time // zero: never
	since int64     // the database's answers before
	over  error     // why the time is over

	// The number of the wait, and in the last two bits its phase. Who moves it on ends the
	// wait: only one can.
	phase atomic.Uint64
}

// The phases of a wait.
const (
	waits    = iota
	answered // it has its answer
	gone     // the caller has left, or its time is over
	phases   = 4
)

// begin begins a caller's wait. d.mu is locked.
func (d *Dispatcher) begin(op *store.Op, k key) *waiter {
	w, ok := d.pool.Get().(*waiter)
	if !ok {
		w = &waiter{ready: make(chan struct{}, 1)}
	}
	w.op, w.key = op, k
	w.ends, w.since = time.Time{}, d.answers()
	phase := w.phase.Load()/phases*phases + phases + waits
	w.phase.Store(phase)
	if d.Timeout > 0 {
		w.ends = time.Now().Add(d.Timeout)
		d.waits.Add(begun{w, d, phase})
	}
	return w
}

// free returns a waiter that has its answer to the pool.
func (d *Dispatcher) free(w *waiter) {
	w.request = request{}
	d.pool.Put(w)
}

// answer ends the wait with an answer. If the caller has gone, what was granted stays
// counted, unless the op has a Late. The caller may use w again.
func (w *waiter) answer(err error, rows int) {
	w.err, w.rows = err, rows
	wait := w.phase.Load()
	if wait%phases == waits && w.phase.CompareAndSwap(wait, wait+answered) {
		w.ready <- struct{}{}
	} else if err == nil && w.op.Late != nil && w.op.Granted() {
		w.op.Late()
	}
}

// gone reports whether the caller has left or its time is over.
func (w *waiter) gone() bool { return w.phase.Load()%phases == gone }

// left returns how long the wait may go on: nothing if the caller has gone.
func (w *waiter) left() time.Duration {
	switch {
	case w.gone():
		return 0
	case w.ends.IsZero():
		return math.MaxInt64
	}
	return time.Until(w.ends)
}

// wait waits until the request is answered, and returns nil; or until ctx ends or the time
// is over, and returns why. Then w cannot be used again.
func (w *waiter) wait(ctx context.Context) error {
	if done := ctx.Done(); done != nil {
		select {
		case <-w.ready:
			return w.over
		case <-done:
		}
		if wait := w.phase.Load(); wait%phases == waits && w.phase.CompareAndSwap(wait, wait+gone) {
			return store.EndedContext(ctx)
		}
	}
	<-w.ready
	return w.over
}

// statement is the context of a statement or a transaction, and who waits for it.
type statement struct {
	sending.Context
	callers int // Dispatcher.mu guards it
}

// detach returns the context of a statement. The sender calls Cancel when that has ended.
// d.mu is locked.
func (d *Dispatcher) detach() *statement {
	s := new(statement)
	s.Answers = &d.parts
	s.Begin(d.Timeout, &d.contexts)
	return s
}

// carry marks a request as sent by the statement. Dispatcher.mu is locked.
func (s *statement) carry(w *waiter) {
	w.state, w.statement = sent, s
	s.callers++
}

// giveUp is called for a caller whose time is over. It reports whether nothing was or will
// be sent for it.
func (s *statement) giveUp() bool {
	s.callers--
	return s.Withdraw(s.callers)
}

// timed returns the error of a statement, with the timeout if that ended it.
func (d *Dispatcher) timed(s *statement, err error) error {
	if err == nil || err == store.ErrLocked {
		return err
	}
	store.AwaitEnd(s, err)
	if s.Err() != nil {
		if store.Starved() {
			err = fmt.Errorf("%w: %w", store.ErrStarved, err)
		}
		err = store.TimedOut(err, d.Timeout)
	}
	return err
}

// grace is how long a statement without a timeout may go on after its callers have left.
const grace = time.Second

// left ends the wait of a caller that has left, and its statement if nothing else would.
func (d *Dispatcher) left(w *waiter) {
	d.callers.Add(-1)
	if d.Timeout > 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := w.statement; s != nil {
		if s.callers--; s.callers == 0 {
			time.AfterFunc(grace, s.Cancel)
		}
	}
}

// begun is a wait that has begun.
type begun struct {
	w     *waiter
	d     *Dispatcher
	phase uint64
}

// Ended reports whether the wait has ended: the waiter may be in another one.
func (b begun) Ended() bool { return b.w.phase.Load() != b.phase }

// Due implements sending.Timed, as the other methods do.
func (b begun) Due() time.Time { return b.w.ends }

// Expire ends the wait. d.mu is locked.
func (b begun) Expire(starved bool) { b.end(store.TimedOut(b.d.late(b.w, starved), b.d.Timeout)) }

// end ends the wait without an answer unless it has ended, and reports whether it did.
func (b begun) end(why error) bool {
	if !b.w.phase.CompareAndSwap(b.phase, b.phase+gone) {
		return false
	}
	b.w.over = why
	b.w.ready <- struct{}{}
	return true
}

// keyOfAll returns the key for whose turn a TakeAll waits. It is not that of one key, whose
// row may be free while another group's is locked.
func keyOfAll(op *store.Op) key {
	groups := op.Groups
	var contended *store.Group
	for _, g := range groups {
		if g.Contended && (contended == nil || g.Index < contended.Index) {
			contended = g
		}
	}
	if contended != nil {
		groups = []*store.Group{contended}
	}
	var k strings.Builder
	for _, g := range groups {
		for _, part := range []string{string(g.Algorithm), g.Policy, g.Key} {
			k.WriteString(part)
			k.WriteByte(0) // is in none of them
		}
	}
	return key{key: k.String(), reads: op.Reads()}
}
