package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// UsualLockWait is how long a statement waits for a row's lock. After that the row counts as
// locked and its requests are set aside, so that their neighbours need not wait.
const UsualLockWait = 10 * time.Millisecond

// lockedKeys has the keys whose rows other transactions have locked, with the requests that
// wait for them. A few of these are sent at a time, alone, and their statements wait for the
// locks, while all others continue. Dispatcher.mu guards it.
type lockedKeys struct {
	most  int // statements in flight
	count int // of those
	keys  map[key]*lockedKey
	ready []*lockedKey // those that wait for their turn
}

type lockedKey struct {
	key     key
	waiters []*waiter
	wait    time.Duration // how long a statement last waited for the row
}

// longestWait bounds one wait for a lock. It is below PostgreSQL's default
// deadlock_timeout, so that a wait ends before the server looks for deadlocks.
const longestWait = 900 * time.Millisecond

// join makes a request wait behind the others for its key if that is locked, and reports
// whether it is. d.mu is locked.
func (d *Dispatcher) join(w *waiter) bool {
	h := d.locked.keys[w.key]
	if h == nil {
		return false
	}
	w.state = locked
	h.waiters = append(h.waiters, w)
	return true
}

// hold makes a request wait for its key, which is locked. d.mu is locked.
func (d *Dispatcher) hold(w *waiter) {
	if d.join(w) {
		return
	}
	w.state = locked
	h := &lockedKey{key: w.key, waiters: []*waiter{w}}
	d.locked.keys[w.key] = h
	d.locked.ready = append(d.locked.ready, h)
	if d.locked.count < d.locked.most {
		d.locked.count++
		d.start(d.sendLocked)
	}
}

// sendLocked sends for the locked keys. They take turns, so that a key that is free again
// does not wait for the others.
func (d *Dispatcher) sendLocked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := &d.locked; len(l.ready) > 0; {
		h := l.ready[0]
		l.ready = l.ready[1:]
		if free := d.sendFirst(h); !free && len(h.waiters) > 0 {
			l.ready = append(l.ready, h)
			continue
		}
		delete(l.keys, h.key)
		for _, w := range h.waiters { // the key is free, or nobody waits for its lock
			if !w.gone() {
				d.enqueue(w)
			}
		}
	}
	d.locked.count--
	d.done()
}

// sendFirst sends the key's first request that still has a caller, and reports whether the
// row was free. d.mu is locked, but not while it sends.
func (d *Dispatcher) sendFirst(h *lockedKey) (free bool) {
	for len(h.waiters) > 0 {
		w := h.waiters[0]
		// A wait for a lock ends so long before the caller's time does: a caller that leaves
		// has then consumed nothing.
		left := w.left() - max(0, d.Timeout/8)
		wait := h.longer(left)
		tried := left > 0 && d.attempt(w, wait)
		if tried && w.err == store.ErrLocked {
			w.state, h.wait = locked, wait
			return false
		}
		h.waiters[0] = nil
		h.waiters = h.waiters[1:]
		if tried || w.err == store.ErrKnown {
			w.answer(w.err, 1)
		}
		if tried {
			return true
		}
	}
	return false
}

// longer returns how long the next turn waits after one that found the row locked. The
// server logs each such turn, so there must not be many. The longer a row has been
// locked, the longer its requests may wait for their turn.
func (h *lockedKey) longer(left time.Duration) time.Duration {
	return max(time.Millisecond, min(max(UsualLockWait, 2*h.wait), longestWait, left))
}

// attempt sends a request alone, and sets its error. It reports false if it did not send it,
// since its caller has gone, or its answer is known, which is the error then. d.mu is locked,
// but not meanwhile.
func (d *Dispatcher) attempt(w *waiter, lockWait time.Duration) (tried bool) {
	d.mu.Unlock()
	known := w.op.Known != nil && w.op.Known()
	d.mu.Lock()
	if w.err = nil; known {
		w.err = store.ErrKnown
	}
	if known || w.gone() {
		return false
	}
	ctx := d.detach()
	ctx.carry(w)
	d.mu.Unlock()
	relax(w.op)
	var err error
	if len(w.op.Groups) > 0 && !w.op.Reads() {
		err = d.takeAll(ctx, w.op, lockWait)
	} else {
		if w.op.LockWait = lockWait; w.key.reads {
			w.op.LockWait = 0
		}
		err = d.db.Do(ctx, w.op)
	}
	if err == store.ErrReservationLocked && w.key.policy == "" { // it has the reservation's turn
		err = store.ErrLocked
	}
	w.err = d.timed(ctx, err)
	ctx.Cancel()
	d.mu.Lock()
	return true
}

// takeAll sends a TakeAll, a TakeAny or a SettleAll. Its turn is that of its first contended key: a client cannot have more
// turns by more keys. Without a contended key it is that of all its keys together.
func (d *Dispatcher) takeAll(ctx context.Context, op *store.Op, wait time.Duration) error {
	first, end := wait <= UsualLockWait, time.Now().Add(wait)
	if !first && len(op.Groups) > 1 {
		d.awaitFree(ctx, op.Groups, end)
		wait = UsualLockWait
	}
	op.LockWait = wait
	err := d.db.Do(ctx, op)
	switch {
	case err != store.ErrLocked:
	case first && op.Kind == store.TakeAll && !op.Once() && d.deniedAnyway(ctx, op):
		return nil
	case !first: // awaitFree does not see a row that was inserted and not committed
		time.Sleep(min(time.Until(end), 5*probeEvery))
	}
	return err
}

// probeEvery is how often a request for several keys looks whether they are free.
const probeEvery = 20 * time.Millisecond

// awaitFree waits until no row of the groups is locked, or until end, and locks none
// meanwhile: a statement that waits for one of the rows would keep the others locked.
func (d *Dispatcher) awaitFree(ctx context.Context, groups []*store.Group, end time.Time) {
	for ; time.Until(end) > 0; time.Sleep(min(probeEvery, max(0, time.Until(end)))) {
		if locked, err := d.anyLocked(ctx, groups); !locked || err != nil {
			return // the request itself tells an error
		}
	}
}

// anyLocked reports whether another transaction has locked a row of the groups.
func (d *Dispatcher) anyLocked(ctx context.Context, groups []*store.Group) (bool, error) {
	for len(groups) > 0 {
		var rows []*store.Row // of one algorithm
		for len(rows) < len(groups) && groups[len(rows)].Algorithm == groups[0].Algorithm {
			rows = append(rows, &store.Row{Query: &groups[len(rows)].Query})
		}
		if locked, err := d.db.Locked(ctx, rows); err != nil || slices.Contains(locked, true) {
			return true, err
		}
		groups = groups[len(rows):]
	}
	return false, nil
}

// deniedAnyway reads the keys without their locks, and reports whether that is enough to
// deny: a caller whose own limit denies does not wait for a row that all share. A denial
// that begins a block has to write it.
func (d *Dispatcher) deniedAnyway(ctx context.Context, op *store.Op) bool {
	if err := d.db.Do(ctx, &store.Op{Kind: store.GetAll, Groups: op.Groups}); err != nil || store.AllFit(op.Groups) {
		return false
	}
	for _, g := range op.Groups {
		if !g.Fits() && !g.Outcome.Blocked && g.BlockFor > 0 {
			return false
		}
	}
	op.Allowed = false
	return true
}
