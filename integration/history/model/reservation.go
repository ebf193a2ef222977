package model

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

type state string

const (
	open      state = "open"
	settled   state = "settled"
	cancelled state = "cancelled"
	expired   state = "expired"
	spent     state = "spent" // only remembers an idempotency key
	given     state = "given" // likewise, of a Grant
)

// Reservation is an admission that is remembered.
type Reservation struct {
	Record
	Parts []algorithm.Lot // what it took of the lots of a balance
}

func (h Reservation) equal(o Reservation) bool {
	return h.Record == o.Record && slices.Equal(h.Parts, o.Parts)
}

// Record is a Reservation but for its Parts.
type Record struct {
	ID       int // below 0 until an answer has named it
	Key      int
	Rules    Rules
	Idem     int
	State    state
	Asked    float64
	Reserved float64
	Units    float64 // that are counted
	Estimate float64 // what was asked for, if it is an estimate of which all is reserved
	Grant    algorithm.Grant
	Answer   limiter.Result // as of the time of the key

	Made, Expires, Forget int64
}

// admission returns what is remembered of an operation that was admitted with answer a.
func (w *World) admission(op *Op, a limiter.Result, now int64) Reservation {
	k, r := w.Keys[op.Key], rulesOf(op.Policy)
	k.Blocked = 0
	v := k.State.Seen(&r.Rules, now, k.Clock, r.Capacity, 0)
	if c, ok := v.(*algorithm.Counter); ok { // it is stored without the period of its windows
		v = &algorithm.Counter{Current: c.Level(nil, k.Clock), EndsAt: c.EndsAt, Period: r.Period}
	}
	h := Reservation{Record: Record{
		ID: -op.Number, Key: op.Key, Rules: *r, Idem: op.Idem, State: spent, Asked: op.Units, Reserved: a.Granted, Units: a.Granted,
		Grant: v.Counted(k.Clock), Answer: k.answer(r, v, k.Clock), Made: k.Clock, Expires: k.Clock + op.For, Forget: k.Clock + op.For + op.Remember,
	}}
	if a, ok := v.(algorithm.AccountView); ok {
		h.Parts = a.Parts
	}
	h.Answer.Allowed, h.Answer.Granted, h.Answer.Delay, h.Answer.Replayed = true, a.Granted, a.Delay, true
	if op.Reserves() {
		h.State = open
	}
	return h
}

// read returns a world in which an estimate has read what the key's last ones have spent.
func (w *World) read(op *Op, now int64) *World {
	next, n, spent, estimated := w.clone(), 0, 0.0, 0.0
	settled := slices.DeleteFunc(slices.Clone(w.Held), func(h Reservation) bool {
		return h.Key != op.Key || h.State != settled || h.Estimate == 0 || h.Forget <= now
	})
	slices.SortStableFunc(settled, func(a, b Reservation) int { return cmp.Compare(b.Made, a.Made) })
	for _, h := range settled[:min(len(settled), store.MaxEstimates)] {
		n, spent, estimated = n+1, spent+h.Units, estimated+h.Estimate
	}
	units := store.Correct(op.Units, store.Factor(n, spent, estimated), rulesOf(op.Policy).Burst)
	next.Dues = append(next.Dues, Due{Op: op.Number, Key: op.Key, Units: units})
	return &next
}

// corrected returns what an estimate reserves, by what it has read.
func (w *World) corrected(op *Op) (units float64, read bool) {
	i := slices.IndexFunc(w.Dues, func(d Due) bool { return d.Op == op.Number })
	if i < 0 {
		return 0, false
	}
	return w.Dues[i].Units, true
}

func (h *Reservation) overdue(now int64) bool { return h.State == open && h.Expires <= now }

// admitted returns what an idempotency key stands for.
func (w *World) admitted(op *Op) *Reservation {
	i := slices.IndexFunc(w.Held, func(h Reservation) bool { return op.Idem != 0 && h.Idem == op.Idem && h.Key == op.Key })
	if i < 0 {
		return nil
	}
	return &w.Held[i]
}

// forget frees an idempotency key. A reservation that has it goes back first.
func (w *World) forget(h *Reservation, now int64) {
	if h.State == open {
		w.finish(h, expired, 0, now)
	}
	h.Idem = 0
}

// replay returns the answer of an earlier admission.
func (h *Reservation) replay(op *Op) (out Out) {
	if op.Reserves() == (h.State == spent || h.State == given) || (op.Verb == Add) != (h.State == given) || h.Asked != op.Units || op.Verb == Reserve && h.Reserved != op.Units {
		out.Fault = Invalid
		return out
	}
	if out.Result = h.Answer; op.Reserves() {
		out.Held, out.Expires = h.ID, time.UnixMicro(h.Expires)
	}
	return out
}

// end does a Settle or Cancel.
func (w *World) end(op *Op, now int64) (out Out) {
	i := slices.IndexFunc(w.Held, func(h Reservation) bool { return h.ID == op.Held })
	if i < 0 || w.Held[i].State == spent || w.Held[i].State == given || w.Held[i].Forget <= now {
		out.Fault = Unknown
		return out
	}
	h := &w.Held[i]
	if op.Verb == Cancel {
		if h.State == open {
			w.finish(h, cancelled, 0, now)
		} else if h.State == settled {
			out.Fault = Ended
		}
		return out
	}
	late := h.State == expired || h.overdue(now)
	again := h.State == settled && h.Units == op.Units
	out.unmoved = again || !h.moves(op.Units, now)
	switch {
	case h.State == open || h.State == expired:
		w.finish(h, settled, op.Units, now)
	case !again:
		out.Fault = Ended
		return out
	}
	out.Result = w.Keys[h.Key].changed(&h.Rules, op.Units, now)
	out.Result.Replayed, out.Result.Expired = again, late
	return out
}

// moves reports whether an end with the units really used changes the key.
func (h *Reservation) moves(used float64, now int64) bool {
	return used != h.Units && (h.Rules.family() != algorithm.Windows || h.Grant.EndsAt > now)
}

// finish ends a reservation with the units really used, and returns how many went back.
func (w *World) finish(h *Reservation, to state, used float64, now int64) (back float64) {
	k := &w.Keys[h.Key]
	if k.count(&h.Rules, used); h.State == open {
		k.count(&h.Rules, -h.Reserved)
	}
	if h.moves(used, now) {
		k.Clock = k.begin(&h.Rules, now)
		fresh := k.Rules.Capacity == 0
		if fresh {
			k.Rules = h.Rules.Rules
		}
		counted := algorithm.Reservation{Rules: h.Rules.Rules, Units: h.Units, CountedAt: cmp.Or(h.Grant.At, h.Made), EndsAt: h.Grant.EndsAt, Parts: h.Parts}
		back = k.State.Settle(&k.Rules, now, k.Clock, counted, used, fresh)
	}
	if h.State = to; to == settled {
		h.Units = used
	} else {
		h.Units, h.Idem = h.Units-back, 0
	}
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
		freed = w.finish(h, expired, 0, now) > 0 || freed
	}
	return freed
}
