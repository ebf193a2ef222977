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
		l.answerAll(rows, err)
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
		l.hold(r)
		for r := l.takeOff(placeOf(r.Query)); r != nil; r = r.behind {
			l.hold(r)
		}
	}
}

// hold moves a row's callers to the lane. l.mu is locked.
func (l *line) hold(r *row) {
	k := waiting.SlotOf(r.Query)
	for w := r.first; w != nil; {
		next := w.next // Hold may send w
		w.ticket.State, w.next = waiting.Locked, nil
		l.lane.Hold(k, w)
		w = next
	}
}

// Try is waiting.Task's: it sends the request alone.
func (w *waiter) Try(wait time.Duration) error {
	l := w.line
	l.mu.Lock()
	if w.ticket.Gone() {
		l.mu.Unlock()
		return waiting.ErrGone
	}
	ctx, cancel := l.room.Detached()
	w.ticket.Fly(ctx)
	r := w.ownRow()
	l.mu.Unlock()
	err := l.room.Late(ctx, l.send(ctx, nil, []*row{r}, wait))
	cancel()
	if err == store.ErrLocked {
		l.mu.Lock()
		w.ticket.State = waiting.Locked
		l.mu.Unlock()
		return err
	}
	r.answer(err)
	return nil
}

// Left is waiting.Task's.
func (w *waiter) Left() time.Duration { return w.ticket.Left() }

// Again is waiting.Task's.
func (w *waiter) Again() {
	l := w.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.ticket.Gone() {
		k := placeOf(w.query)
		l.enqueue(k, l.heads[k], w)
	}
}
