package sending

import (
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Deadlines ends things whose time is over. It has one timer for all of them, and none
// while there is nothing to end.
type Deadlines[T Timed] struct {
	mu sync.Locker // guards it; Expire is called with it

	begun []T // in the order of their ends; some have ended
	full  int // the length at which begun is looked through for those that have ended
	timer *time.Timer
	armed bool
}

// NewDeadlines returns a Deadlines that mu guards.
func NewDeadlines[T Timed](mu sync.Locker) Deadlines[T] { return Deadlines[T]{mu: mu} }

// Timed is a thing that a Deadlines ends, each after the same time.
type Timed interface {
	Ended() bool
	Due() time.Time
	// Expire ends it. starved: a goroutine waits long for its turn, so that what came late may
	// not be the server's fault.
	Expire(starved bool)
}

// fewBegun is the number for which looking through them is not worth while.
const fewBegun = 64

// Add adds a thing that has begun. mu is locked.
func (d *Deadlines[T]) Add(x T) {
	if len(d.begun) >= max(fewBegun, d.full) {
		d.drop()
		d.full = 2 * len(d.begun)
	}
	d.begun = append(d.begun, x)
	if !d.armed {
		d.armed = true
		d.arm(time.Until(x.Due()))
	}
}

// drop drops those that have ended.
func (d *Deadlines[T]) drop() {
	kept := d.begun[:0]
	for _, x := range d.begun {
		if !x.Ended() {
			kept = append(kept, x)
		}
	}
	clear(d.begun[len(kept):])
	d.begun = kept
}

func (d *Deadlines[T]) arm(in time.Duration) {
	if d.timer == nil {
		d.timer = time.AfterFunc(in, d.look)
	} else {
		d.timer.Reset(in)
	}
}

// look ends those whose time is over, and looks again when the next one's is.
func (d *Deadlines[T]) look() {
	starved := store.Starved()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, x := range d.begun {
		if !x.Ended() && !now.Before(x.Due()) {
			x.Expire(starved)
		}
	}
	d.drop()
	if d.armed = len(d.begun) > 0; d.armed {
		d.arm(d.begun[0].Due().Sub(now))
	}
}
