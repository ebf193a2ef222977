package dispatch

import (
	"sync"
	"time"
)

// deadlines ends things whose time is over. It has one timer for all of them, and none
// while there is nothing to end.
type deadlines[T timed] struct {
	mu sync.Locker // guards it; expire is called with it

	begun []T // in the order of their ends; some have ended
	full  int // so many are looked through for those that have ended
	timer *time.Timer
	armed bool
}

// timed is a thing that a deadlines ends, each after the same time.
type timed interface {
	ended() bool
	due() time.Time
	expire()
}

// fewBegun is the number for which looking through them is not worth while.
const fewBegun = 64

// add adds a thing that has begun. mu is locked.
func (d *deadlines[T]) add(x T) {
	if len(d.begun) >= max(fewBegun, d.full) {
		d.drop()
		d.full = 2 * len(d.begun)
	}
	d.begun = append(d.begun, x)
	if !d.armed {
		d.armed = true
		d.arm(time.Until(x.due()))
	}
}

// drop drops those that have ended.
func (d *deadlines[T]) drop() {
	kept := d.begun[:0]
	for _, x := range d.begun {
		if !x.ended() {
			kept = append(kept, x)
		}
	}
	clear(d.begun[len(kept):])
	d.begun = kept
}

func (d *deadlines[T]) arm(in time.Duration) {
	if d.timer == nil {
		d.timer = time.AfterFunc(in, d.look)
	} else {
		d.timer.Reset(in)
	}
}

// look ends those whose time is over, and looks again when the next one's is.
func (d *deadlines[T]) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, x := range d.begun {
		if !x.ended() && !now.Before(x.due()) {
			x.expire()
		}
	}
	d.drop()
	if d.armed = len(d.begun) > 0; d.armed {
		d.arm(d.begun[0].due().Sub(now))
	}
}
