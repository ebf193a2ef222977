package waiting

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// State is where a caller's request is.
type State uint8

// The states of a request.
const (
	Queued State = iota // not sent
	Sent                // in flight
	Locked              // another transaction has locked its row; nothing was consumed
)

// Ticket is one caller's wait. Once the wait was answered, the ticket can be used again.
type Ticket struct {
	// State is where the request is. Its owner guards it.
	State State

	flight *flight // of a request that is Sent; nil: unknown
	ready  chan struct{}
	ends   time.Time // zero: never
	since  int64     // the database's answers before
	err    error     // why the time is over

	// The number of the wait, and in the last two bits its phase. Who moves it on ends the
	// wait: only one can.
	phase atomic.Uint64
}

// The phases of a wait.
const (
	waits    = iota
	answered // it has its answer
	gone     // the caller has left, or its time is over
	phases   = 4
)

// NewTicket returns a Ticket.
func NewTicket() *Ticket { return &Ticket{ready: make(chan struct{}, 1)} }

// Fly marks the request as Sent by the statement whose context is ctx, of Room.Detached. The
// owner of State guards it.
func (t *Ticket) Fly(ctx context.Context) {
	t.State = Sent
	if f, ok := ctx.(*flight); ok {
		t.flight = f
		f.callers++
	}
}

// begin begins a wait and returns its phase.
func (t *Ticket) begin(ends time.Time, since int64) (phase uint64) {
	t.ends, t.since, t.flight = ends, since, nil
	phase = t.phase.Load()/phases*phases + phases + waits
	t.phase.Store(phase)
	return phase
}

// Answer ends the wait with an answer, and reports whether the caller still waits.
func (t *Ticket) Answer() bool {
	wait := t.phase.Load()
	if wait%phases != waits || !t.phase.CompareAndSwap(wait, wait+answered) {
		return false
	}
	t.ready <- struct{}{}
	return true
}

// Gone reports whether the caller has left or its time is over.
func (t *Ticket) Gone() bool { return t.phase.Load()%phases == gone }

// Left returns how long the wait may go on: nothing if the caller has gone.
func (t *Ticket) Left() time.Duration {
	switch {
	case t.Gone():
		return 0
	case t.ends.IsZero():
		return math.MaxInt64
	}
	return time.Until(t.ends)
}

// Wait waits until the ticket is answered, and returns nil; or until ctx ends or the time
// is over, and returns why. Then the ticket cannot be used again.
func (t *Ticket) Wait(ctx context.Context) error {
	if done := ctx.Done(); done != nil {
		select {
		case <-t.ready:
			return t.err
		case <-done:
		}
		if wait := t.phase.Load(); wait%phases == waits && t.phase.CompareAndSwap(wait, wait+gone) {
			return store.EndedContext(ctx)
		}
	}
	<-t.ready
	return t.err
}
