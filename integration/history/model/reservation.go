package model

import (
	"cmp"
	"math"
	"slices"
)

type state string

const (
	open      state = "open"
	settled   state = "settled"
	cancelled state = "cancelled"
	expired   state = "expired"
	spent     state = "spent" // only remembers an idempotency key
)

// Reservation is an admission that is remembered.
type Reservation struct {
	ID       int // below 0 until an answer has named it
	Key      int
	Rules    Rules
	Idem     int
	State    state
	Reserved float64
	Units    float64 // that are counted
	Level    float64 // of the key after the admission
	Grant    Grant

	Made, Expires, Forget int64
}

func (h *Reservation) overdue(now int64) bool { return h.State == open && h.Expires <= now }

// admitted returns what an idempotency key stands for.
func (w *World) admitted(op *Op) *Reservation {
	if op.Idem == 0 {
		return nil
	}
	for i := range w.Held {
		if h := &w.Held[i]; h.Idem == op.Idem && h.Key == op.Key {
			return h
		}
	}
	return nil
}

// forget frees an idempotency key. A reservation that has it goes back first.
func (w *World) forget(h *Reservation, now int64) {
	if h.State == open {
		w.finish(h, expired, 0, now)
	}
	h.Idem = 0
}

// replay returns the answer of an earlier admission.
func (w *World) replay(op *Op, h *Reservation) (out Out) {
	if (op.Verb == Reserve) == (h.State == spent) || h.Reserved != op.Units {
		return Out{Fault: Invalid}
	}
	// The answer as it was, as of the time of the key then.
	r := &h.Rules
	k := Key{Known: true, Counted: true, Clock: h.Made, Level: h.Level, Since: h.Grant.At, Ends: h.Grant.Ends, Span: r.Period, Last: *r}
	if r.Kind == Log {
		k.Entries = []Entry{{h.Grant.At, h.Level}}
	}
	at := h.Made
	if r.Kind == Window { // a reading of the clock that was behind the key's may have counted it in a window that was over
		at = min(at, h.Grant.Ends-1)
	}
	out.Answer = k.standing(r, at)
	out.Answer.At, out.Answer.ResetAfter = h.Made, max(0, out.Answer.ResetAfter-(h.Made-at))
	out.Answer.Allowed, out.Answer.Granted, out.Answer.Replayed = true, op.Units, true
	k.delay(r, h.Level-op.Units, &out.Answer)
	if op.Verb == Reserve {
		out.Held, out.Expires = h.ID, h.Expires
	}
	return out
}

// end does a Settle or Cancel.
func (w *World) end(op *Op, now int64) (out Out) {
	i := slices.IndexFunc(w.Held, func(h Reservation) bool { return h.ID == op.Held })
	if i < 0 || w.Held[i].State == spent || w.Held[i].Forget <= now {
		return Out{Fault: Unknown}
	}
	h := &w.Held[i]
	if op.Verb == Cancel {
		if h.State == settled {
			return Out{Fault: Ended}
		}
		if h.State == open {
			w.finish(h, cancelled, 0, now)
		}
		return out
	}
	late := h.State == expired || h.overdue(now)
	again := h.State == settled && h.Units == op.Units
	out.Unmoved = again || !h.moves(op.Units, now)
	switch {
	case h.State == open || h.State == expired:
		w.finish(h, settled, op.Units, now)
	case !again:
		return Out{Fault: Ended}
	}
	k := w.Keys[h.Key].clone()
	r := h.Rules
	level := r
	if r.Kind == Log && k.Known { // entries count as long as they are kept
		level.Period = k.Keep
	}
	out.Answer = k.standing(&level, now)
	out.Answer.Allowed, out.Answer.Granted, out.Answer.Replayed, out.Answer.Expired = true, op.Units, again, late
	return out
}

// moves reports whether an end with the units really used changes the key.
func (h *Reservation) moves(used float64, now int64) bool {
	return used != h.Units && (h.Rules.Kind != Window || h.Grant.Ends > now)
}

// finish ends a reservation with the units really used, and returns how many went back.
func (w *World) finish(h *Reservation, to state, used float64, now int64) (back float64) {
	if h.moves(used, now) {
		back = w.change(&w.Keys[h.Key], &h.Rules, h, used, now)
	}
	switch to {
	case settled:
		h.Units = used
	default:
		h.Units -= back
		h.Idem = 0
	}
	h.State = to
	return back
}

// change changes what is counted of a reservation.
func (w *World) change(k *Key, r *Rules, h *Reservation, used float64, now int64) (back float64) {
	k.begin(now)
	fresh, e := !k.Counted, k.at(now)
	if fresh {
		k.Counted, k.Last, k.Keep = true, *r, r.Period
	}
	if k.Ends == 0 { // a counter that only a block made, and denials, has had no window
		k.Span = r.Period
	}
	k.settleTime(r, now)
	if r.Kind == Window && (fresh || now >= k.Ends) {
		k.Level, k.Ends = 0, h.Grant.Ends
	}
	if used < h.Units {
		back = k.giveBack(r, h, used, now)
	} else {
		k.add(r, e, used-h.Units)
	}
	k.Clock = e
	return back
}

// giveBack takes out what is left of a reservation beyond the units used. Of a bucket, what
// has leaked of all of it may have been used by others.
func (k *Key) giveBack(r *Rules, h *Reservation, used float64, now int64) (back float64) {
	g := h.Grant
	if r.Kind != Bucket {
		g.Units = h.Units - used
		return k.remove(r, g, r, now)
	}
	age := k.at(now) - g.At
	leaked := max(r.leak(age), k.Last.leak(age))
	back = max(0, min(k.Level, h.Units-used, h.Units-leaked))
	k.Level -= back
	return back
}

// most returns the number of reservations that an attempt gives back.
func most(stop int) int {
	switch {
	case stop > lifted:
		return stop - lifted
	case stop > gave:
		return stop - gave
	}
	return math.MaxInt
}

// give gives back the reservations of a key that have expired, the first to expire first,
// and reports whether any units went back. Reservations that others are ending are passed
// over.
func (w *World) give(key int, now int64, most int) (freed bool) {
	var due []*Reservation
	for i := range w.Held {
		if h := &w.Held[i]; h.Key == key && h.overdue(now) && h.ID != w.skip {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *Reservation) int {
		return cmp.Or(cmp.Compare(a.Expires, b.Expires), cmp.Compare(a.Units, b.Units))
	})
	for _, h := range due[:min(len(due), most)] {
		if w.finish(h, expired, 0, now) > 0 {
			freed = true
		}
	}
	return freed
}
