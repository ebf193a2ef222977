package waiting

import (
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Watch ends the waits of callers whose time is over, by one timer for all of them: a
// timer for each caller would cost as much as the caller's share of a statement.
type Watch struct {
	room  *Room
	waits deadlines[begun]
}

// begun is a wait that has begun.
type begun struct {
	*Ticket
	room  *Room
	phase uint64
	ends  time.Time
}

// NewWatch returns a Watch of waits in a room. mu guards it and the States of its tickets.
func NewWatch(r *Room, mu sync.Locker) *Watch {
	return &Watch{room: r, waits: deadlines[begun]{mu: mu}}
}

// Begin begins a wait. mu is locked.
func (w *Watch) Begin(t *Ticket) {
	if w.room.timeout <= 0 {
		t.begin(time.Time{}, w.room.Answers())
		return
	}
	ends := time.Now().Add(w.room.timeout)
	w.waits.add(begun{t, w.room, t.begin(ends, w.room.Answers()), ends})
}

// ended reports whether the wait has ended: the ticket may be in another one.
func (b begun) ended() bool { return b.Ticket.phase.Load() != b.phase }

func (b begun) due() time.Time { return b.ends }

func (b begun) expire() {
	err := store.TimedOut(b.room.late(b.Ticket), b.room.timeout)
	if b.Ticket.phase.CompareAndSwap(b.phase, b.phase+gone) {
		b.err = err
		b.ready <- struct{}{}
	}
}
