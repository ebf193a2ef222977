package coalesce

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// patience is how long a statement waits for a row's lock. After that the row counts as
// locked and is set aside, so that its neighbours need not wait.
const patience = 10 * time.Millisecond

// lockedKey is a key in the lane: another transaction has locked its row. The lane sends
// single statements, few at a time, which wait for such rows while the others continue.
type lockedKey struct {
	slot
	next, last *row          // of its rows; next may be in flight
	wait       time.Duration // how long the lane last waited for the row
}

// sortOut sends rows again that are not locked, and moves the others to the lane.
func (l *line) sortOut(ctx context.Context, b *batch, rows []*row) {
	if len(rows) == 1 {
		l.setAllAside(rows)
		return
	}
	b.sent = b.sent[:0]
	for _, r := range rows {
		b.sent = append(b.sent, &r.Row)
	}
	isLocked, err := l.many.Locked(ctx, b.sent)
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
	l.setAllAside(locked)
	l.run(b, free)
}

func (l *line) setAllAside(rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		l.setAside(r)
	}
}

// setAside moves a row to the lane. l.mu is locked.
func (l *line) setAside(r *row) {
	r.sent = false
	k := slotOf(r.Query)
	h := l.locked[k]
	if h == nil {
		h = &lockedKey{slot: k, next: r}
		l.locked[k] = h
		l.lane = append(l.lane, h)
	} else {
		h.last.behind = r
	}
	h.last = r
	if last := l.last[k]; last != nil { // requests that came meanwhile go behind r
		i := slices.IndexFunc(l.queue, func(r *row) bool { return slotOf(r.Query) == k })
		r.behind, h.last = l.queue[i], last
		l.queue = slices.Delete(l.queue, i, i+1)
		delete(l.last, k)
	}
	if l.inLane < cap(l.patient) {
		l.inLane++
		l.running.Add(1)
		go l.runLane()
	}
}

// runLane sends for the keys in the lane. They take turns, so that a key that is free
// again does not wait for the others.
func (l *line) runLane() {
	defer l.running.Done()
	b := batches.Get().(*batch)
	defer batches.Put(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lane) > 0 {
		h := l.lane[0]
		l.lane = slices.Delete(l.lane, 0, 1)
		r, err := l.turn(b, h)
		if err == store.ErrLocked {
			l.lane = append(l.lane, h)
			continue
		}
		// The row is free, or its callers have left. Requests that came meanwhile are
		// sent with all others.
		delete(l.locked, h.slot)
		if h.next != nil {
			l.last[h.slot] = h.last
			l.queue = append(l.queue, h.next)
			if l.inFlight == 0 {
				l.start()
			}
		}
		if r != nil {
			r.answer(err)
		}
	}
	l.inLane--
}

// turn is one turn of a key in the lane. It sends the first row that still has callers.
// It returns the row and takes it off the lane, unless it is still locked. l.mu is
// locked, except during the wait.
func (l *line) turn(b *batch, h *lockedKey) (*row, error) {
	l.mu.Unlock()
	l.patient <- struct{}{}
	defer func() { <-l.patient }()
	l.mu.Lock()
	for h.next != nil && !h.next.prepare() {
		h.next = h.next.behind
	}
	r := h.next
	if r == nil {
		return nil, nil
	}
	h.wait = l.longer(h.wait)
	l.mu.Unlock()
	ctx, cancel := detached(2 * l.options.Timeout)
	// The server ends the wait: cancelling the context would close the connection.
	err := l.send(ctx, b, []*row{r}, h.wait)
	cancel()
	l.mu.Lock()
	if err == store.ErrLocked {
		r.sent = false
		return nil, err
	}
	h.next = r.behind
	return r, err
}

// longestTurn bounds a turn in the lane without Options.Timeout.
const longestTurn = time.Second

// longer returns how long the next turn waits after one that found the row locked. The
// server logs each such turn, so there must not be many. The longer a row has been
// locked, the longer its requests may wait for their turn.
func (l *line) longer(wait time.Duration) time.Duration {
	most := l.options.Timeout
	if most <= 0 {
		most = longestTurn
	}
	return max(time.Millisecond, min(max(patience, 2*wait), most))
}
