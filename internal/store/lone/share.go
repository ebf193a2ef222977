package lone

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// deliver sends a batch and answers its requests, except those that are locked or to be sent
// alone.
func (s *Store) deliver(b *batch) {
	if len(b.calls) > 1 {
		s.sendTogether(b)
	} else if c := b.calls[0]; c.attempt(waiting.Patience) == store.ErrLocked {
		b.locked = append(b.locked, c)
	}
}

// sendTogether sends requests as one transaction. If that was rolled back, because a row was
// locked or a value was bad, nothing was decided: a locked key waits in the lane, and each
// other request is sent alone. So a bad neighbour delays a request once.
func (s *Store) sendTogether(b *batch) {
	ctx, cancel := s.room.Detached()
	defer cancel()
	b.calls = slices.DeleteFunc(b.calls, b.readies(ctx, s, cancel))
	calls := b.calls
	if len(calls) == 0 {
		return
	}
	wait := waiting.Patience
	if calls[0].key.reads {
		wait = 0
	}
	ops := make([]*store.Op, len(calls))
	for i, c := range calls {
		c.op.LockWait, ops[i] = wait, c.op
	}
	errs, err := s.inner.Pipeline(ctx, wait, ops)
	err = s.room.Late(ctx, err)
	if err != nil { // what was decided was rolled back, or may have been
		for _, op := range ops {
			op.Outcome = store.Outcome{}
		}
	}
	var part *store.PartError
	switch {
	case err == nil:
		beside := -1
		for _, err := range errs {
			if !errors.Is(err, store.ErrAlone) {
				beside++
			}
		}
		for i, c := range calls {
			if errors.Is(errs[i], store.ErrAlone) {
				b.again = append(b.again, c)
			} else {
				c.beside = beside
				c.answer(errs[i])
			}
		}
	case err == store.ErrAlone:
		b.again = calls
	case errors.As(err, &part):
		calls[part.Index].alone = true // a Settle's reservation may be locked, and its key free
		for _, c := range calls {
			if part.Err == store.ErrLocked && c.key == calls[part.Index].key {
				b.locked = append(b.locked, c)
			} else {
				b.again = append(b.again, c)
			}
		}
	default:
		for _, c := range calls {
			c.answer(err)
		}
	}
}

// readies returns a function that readies a request of a batch to be sent, and reports
// whether it need not be: its caller has gone, or its answer is known. cancel is called once
// no request has a caller, as far as leave calls it.
func (b *batch) readies(ctx context.Context, s *Store, cancel context.CancelFunc) func(*call) bool {
	if s.room.Timeout() <= 0 {
		last := cancel
		var callers atomic.Int64
		callers.Store(int64(len(b.calls)))
		cancel = func() {
			if callers.Add(-1) == 0 {
				last()
			}
		}
	}
	return func(c *call) bool {
		switch {
		case c.op.Known != nil && c.op.Known():
			c.answer(store.ErrKnown)
		case c.begin(ctx, cancel):
			return false
		}
		if s.room.Timeout() <= 0 {
			cancel()
		}
		return true
	}
}

// sortOut lists the flows of a batch again, and brings the requests that have no answer on
// their way. s.mu is locked.
func (s *Store) sortOut(b *batch) {
	for _, f := range b.flows {
		f.inFlight--
	}
	for i := 0; i < len(b.locked); { // those of a flow follow each other
		n := i
		for f := b.locked[i].flow; n < len(b.locked) && b.locked[n].flow == f; n++ {
		}
		s.setAside(b.locked[i].flow, b.locked[i:n:n])
		i = n
	}
	for _, c := range slices.Backward(b.again) { // to the front, in their order
		c.ticket.State, c.alone = waiting.Queued, true
		c.flow.calls = slices.Insert(c.flow.calls, 0, c)
		if c.key.reads {
			s.reads++
		}
		s.start()
	}
	for _, c := range b.calls {
		if c.granted {
			c.flow.trusted = min(c.flow.trusted+1, ofOneKey)
		}
	}
	for _, c := range b.calls {
		if c.denied {
			c.flow.trusted = 0
		}
	}
	for _, f := range b.flows {
		s.list(f)
	}
}
