package dispatch

import (
	"context"
	"fmt"

	"github.com/pglimit/pglimit/internal/store"
)

// minShare is the number of callers of one key that may wait in any case.
const minShare = 64

// share returns the number of callers that may wait for one key.
func (d *Dispatcher) share() int { return min(d.Waiting, max(minShare, d.Waiting/4)) }

// Callers returns the number of callers that wait now.
func (d *Dispatcher) Callers() int { return int(d.callers.Load()) }

// Refuses returns an error while an open circuit breaker refuses requests.
func (d *Dispatcher) Refuses() error { return d.db.Refuses() }

// admit admits a caller, or returns an error. d.mu is locked.
func (d *Dispatcher) admit(k key, op *store.Op) error {
	refusal := d.db.Refuses()
	switch {
	case d.closed:
		return store.ErrClosed
	case refusal != nil:
		return refusal
	case d.waitingFor(k, op) >= d.share():
		return fmt.Errorf("%w: %d callers wait for this key (a quarter of Config.MaxWaiting)", store.ErrOverloaded, d.share())
	case d.callers.Add(1) > int64(d.Waiting):
		d.callers.Add(-1)
		return fmt.Errorf("%w: %d callers wait for the database (Config.MaxWaiting)", store.ErrOverloaded, d.Waiting)
	}
	return nil
}

// waitingFor returns the number of requests that wait for a key. d.mu is locked.
func (d *Dispatcher) waitingFor(k key, op *store.Op) (n int) {
	if h := d.locked.keys[k]; h != nil {
		n = len(h.waiters)
	}
	if q := d.queue(op); q != nil {
		if head := q.heads[k]; head != nil {
			n += head.callers
		}
	} else if s := d.serial.keys[k]; s != nil {
		n += len(s.waiters)
	}
	return n
}

// late returns why a request has no answer in time. d.mu is locked.
func (d *Dispatcher) late(w *waiter) error {
	answers := d.db.Answers() != w.since
	switch {
	case w.state == locked:
		return store.ErrLocked
	case w.state == queued && answers:
		return fmt.Errorf("%w: the request waited behind others and was not sent: %w", store.ErrOverloaded, context.DeadlineExceeded)
	case !answers && d.db.Crowded() && w.state == sent && (w.statement == nil || !w.statement.giveUp()):
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrCrowded, context.DeadlineExceeded)
	case !answers && d.db.Crowded():
		return fmt.Errorf("%w: %w", store.ErrBusy, context.DeadlineExceeded)
	case answers:
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrAnswering, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded)
}
