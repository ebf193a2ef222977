package dispatch

import (
	"errors"

	"github.com/pglimit/pglimit/internal/store"
)

// sendTogether sends requests as one transaction. If that was rolled back, because a row was
// locked or a value was bad, nothing was decided: the requests for a locked key are set
// aside, and each other one is sent alone. So a bad neighbour delays a request once. d.mu is
// locked, but not while it sends.
func (d *Dispatcher) sendTogether(b *shared, o *outcomes) {
	d.mu.Unlock()
	known := make([]bool, len(b.waiters))
	for i, w := range b.waiters {
		known[i] = w.op.Known != nil && w.op.Known()
	}
	d.mu.Lock()
	ctx := d.detach()
	defer ctx.Cancel()
	wait := Patience
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
			ctx.fly(w)
			w.op.LockWait = wait
			waiters, ops = append(waiters, w), append(ops, w.op)
		}
	}
	if len(ops) == 0 {
		return
	}
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
	case err == store.ErrAlone:
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
