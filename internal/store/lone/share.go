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
	calls := slices.DeleteFunc(b.calls, b.readies(s, cancel))
	if len(calls) == 0 {
		return
	}
	wait := waiting.Patience
	if calls[0].key.reads {
		wait = 0
	}
	parts := make([]store.Part, len(calls))
	for i, c := range calls {
		parts[i] = func(inner store.Store) error { return c.send(ctx, inner, wait) }
	}
	errs, err := s.inner.Pipeline(ctx, wait, parts)
	store.AwaitEnd(ctx, err)
	var part *store.PartError
	switch {
	case err == nil:
		for i, c := range calls {
			if errors.Is(errs[i], store.ErrAlone) {
				b.again = append(b.again, c)
			} else {
				c.answer(errs[i])
			}
		}
	case err == store.ErrAlone:
		b.again = calls
	case errors.As(err, &part):
		for _, c := range calls {
			if part.Err == store.ErrLocked && c.key == calls[part.Index].key {
				b.locked = append(b.locked, c)
			} else {
				b.again = append(b.again, c)
			}
		}
	default:
		if ctx.Err() != nil {
			err = store.TimedOut(err, s.room.Timeout())
		}
		for _, c := range calls {
			c.answer(err)
		}
	}
}

// readies returns a function that readies a request of a batch to be sent, and reports
// whether it need not be: its caller has gone, or its answer is known. cancel is called once
// no request has a caller, as far as leave calls it.
func (b *batch) readies(s *Store, cancel context.CancelFunc) func(*call) bool {
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
		case c.known != nil && c.known():
			c.answer(store.ErrKnown)
		case c.begin(cancel):
			return false
		}
		if s.room.Timeout() <= 0 {
			cancel()
		}
		return true
	}
}

// sortOut brings the requests of a flow that have no answer on their way. s.mu is locked.
func (s *Store) sortOut(f *flow, b *batch) {
	ofFlow := func(calls []*call) (own []*call) {
		for _, c := range calls {
			if c.key == f.key {
				own = append(own, c)
			}
		}
		return own
	}
	if own := ofFlow(b.locked); own != nil {
		s.setAside(f, own)
	}
	own := ofFlow(b.again)
	for _, c := range own {
		c.state, c.alone = waiting.Queued, true
	}
	if own != nil {
		f.calls = append(own, f.calls...)
		if f.key.reads {
			s.reads += len(own)
		}
		for range own {
			s.start()
		}
	}
}
