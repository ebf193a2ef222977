package waiting

import (
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Watch ends the waits of callers whose time is over. It has one timer for all of them: a
// timer for each caller would cost as much as the caller's share of a statement. While
// nobody waits it has none.
type Watch struct {
	room *Room
	mu   sync.Locker // guards the Watch and the States of its tickets

	begun []begun // in the order of their ends; some have ended
	full  int     // that many are looked through for those that have ended
	timer *time.Timer
	armed bool
}

// begun is a wait that has begun.
type begun struct {
	*Ticket
	phase uint64
}

// ended reports whether the wait has ended: the ticket may be in another one.
func (b begun) ended() bool { return b.Ticket.phase.Load() != b.phase }

// fewBegun is the number of waits for which looking through them is not worth while.
const fewBegun = 64

// NewWatch returns a Watch of waits in a room, whose owner guards it by mu.
func NewWatch(r *Room, mu sync.Locker) *Watch { return &Watch{room: r, mu: mu, full: fewBegun} }

// Begin begins a wait. mu is locked.
func (w *Watch) Begin(t *Ticket) {
	if w.room.timeout <= 0 {
		t.begin(time.Time{}, w.room.Answers())
		return
	}
	ends := time.Now().Add(w.room.timeout)
	phase := t.begin(ends, w.room.Answers())
	if len(w.begun) >= w.full {
		w.drop()
		w.full = max(fewBegun, 2*len(w.begun))
	}
	w.begun = append(w.begun, begun{t, phase})
	if !w.armed {
		w.armed = true
		w.arm(w.room.timeout)
	}
}

// drop drops the waits that have ended.
func (w *Watch) drop() {
	kept := w.begun[:0]
	for _, b := range w.begun {
		if !b.ended() {
			kept = append(kept, b)
		}
	}
	clear(w.begun[len(kept):])
	w.begun = kept
}

func (w *Watch) arm(in time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(in, w.look)
	} else {
		w.timer.Reset(in)
	}
}

// look ends the waits whose time is over, and looks again when the next one's is.
func (w *Watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, b := range w.begun {
		if !now.Before(b.ends) && !b.ended() {
			b.late(w.room)
		}
	}
	w.drop()
	if w.armed = len(w.begun) > 0; w.armed {
		w.arm(w.begun[0].ends.Sub(now))
	}
}

// late ends a wait whose time is over.
func (b begun) late(r *Room) {
	err := store.TimedOut(r.late(b.Ticket), r.timeout)
	if b.Ticket.phase.CompareAndSwap(b.phase, b.phase+gone) {
		b.err = err
		b.ready <- struct{}{}
	}
}
