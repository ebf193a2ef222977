package coalesce

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// sortOut sends rows again that are not locked, and moves the others to the lane.
func (l *line) sortOut(ctx context.Context, b *batch, rows []*row) {
	if len(rows) == 1 {
		l.setAside(rows)
		return
	}
	b.sent = b.sent[:0]
	for _, r := range rows {
		b.sent = append(b.sent, &r.Row)
	}
	isLocked, err := l.database.Locked(ctx, b.sent)
	switch {
	case err != nil:
		answerAll(rows, err)
		return
	case !slices.Contains(isLocked, true):
		// The row is free again, or another transaction has inserted it and not
		// committed.
		l.runPieces(b, rows)
		return
	}
	var free, locked []*row
	for i, r := range rows {
		if isLocked[i] {
			locked = append(locked, r)
		} else {
			free = append(free, r)
		}
	}
	l.setAside(locked)
	l.run(b, free)
}

// setAside moves the callers of rows to the lane, and behind them those that came for
// the same keys meanwhile.
func (l *line) setAside(rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		k := waiting.SlotOf(r.Query)
		l.hold(k, r)
		if l.last[k] != nil {
			i := slices.IndexFunc(l.queue, func(r *row) bool { return waiting.SlotOf(r.Query) == k })
			for r := l.queue[i]; r != nil; r = r.behind {
				l.hold(k, r)
			}
			l.queue = slices.Delete(l.queue, i, i+1)
			delete(l.last, k)
			delete(l.callers, k)
		}
	}
}

// hold moves a row's callers to the lane. l.mu is locked.
func (l *line) hold(k waiting.Slot, r *row) {
	for w := r.first; w != nil; {
		next := w.next // Hold may send w
		w.state, w.next = waiting.Locked, nil
		l.lane.Hold(k, w)
		w = next
	}
}

// Try is waiting.Task's: it sends the request alone.
func (w *waiter) Try(wait time.Duration) error {
	l := w.line
	l.mu.Lock()
	if w.left {
		l.mu.Unlock()
		return waiting.ErrGone
	}
	w.state = waiting.Sent
	r := w.ownRow()
	r.sent = true
	l.mu.Unlock()
	ctx, cancel := l.room.Detached()
	err := l.send(ctx, nil, []*row{r}, wait)
	cancel()
	if err == store.ErrLocked {
		l.mu.Lock()
		w.state = waiting.Locked
		l.mu.Unlock()
		return err
	}
	r.answer(err)
	return nil
}

// Left is waiting.Task's.
func (w *waiter) Left() time.Duration {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	if w.left {
		return 0
	}
	return w.ticket.Left()
}

// Again is waiting.Task's.
func (w *waiter) Again() {
	l := w.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.left {
		l.enqueue(waiting.SlotOf(w.query), w)
	}
}
