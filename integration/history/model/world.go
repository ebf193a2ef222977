// Package model says what operations may do to keys, for a check of histories. What a
// statement does and answers is the arithmetic of internal/algorithm, as in
// internal/store/memory. The model adds what a call does in several statements, between
// which others may come: a denial that gives expired reservations back and asks again, the
// parts of a denied AllowAll, a lost answer, and the steps of a transaction.
//
// Times are microseconds. With limits that are whole numbers and periods that are powers of
// two nearly every sum and product is exact, whatever its order.
package model

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// World is the state of the keys that share a history.
type World struct {
	Keys   []Key
	Held   []Reservation
	Grants []Grant // that an Undo of the history gives back
	Dues   []Due   // blocks that have to begin, and estimates that are read

	skip int // a reservation that another client is ending: give does not see it
}

// Grant is where an operation counted its units, for Undo.
type Grant struct {
	Op    int
	Units float64
	algorithm.Grant
}

// Due is the block that an AllowAll begins after it was denied, as of the key's time then. Of
// an estimate it is the cost that is to be reserved.
type Due struct {
	Op, Key int
	At      int64
	Units   float64
}

// Equal reports whether two worlds are the same.
func (w *World) Equal(o *World) bool {
	return slices.EqualFunc(w.Keys, o.Keys, func(a, b Key) bool { return a.equal(&b) }) &&
		slices.EqualFunc(w.Held, o.Held, Reservation.equal) && slices.Equal(w.Grants, o.Grants) && slices.Equal(w.Dues, o.Dues)
}

// Hash returns a number that equal worlds share.
func (w *World) Hash() uint64 {
	h := uint64(14695981039346656037)
	mix := func(v int64) { h = (h ^ uint64(v)) * 1099511628211 }
	for i := range w.Keys {
		k := &w.Keys[i]
		mix(k.Clock)
		mix(k.Blocked)
		for _, t := range k.Tries {
			mix(t.Failures)
			mix(t.WaitsUntil)
			mix(int64(len(t.Ends)))
		}
		mix(k.Slots.Fence)
		mix(int64(len(k.Slots.Ends)))
		if k.State != nil {
			mix(int64(k.State.Used(&k.Rules, k.Clock, k.Clock) * (1 << 22)))
			mix(k.State.IdleAt(&k.Rules))
		}
	}
	mix(int64(len(w.Held)))
	mix(int64(len(w.Grants)))
	mix(int64(len(w.Dues)))
	return h
}

func (w *World) clone() World {
	c := World{Keys: make([]Key, len(w.Keys)), Held: slices.Clone(w.Held), Grants: slices.Clone(w.Grants), Dues: slices.Clone(w.Dues), skip: w.skip}
	for i := range w.Keys {
		c.Keys[i] = w.Keys[i].clone()
	}
	return c
}

// apply does op at one reading of the clock, and returns the answer. Unless stop is whole, it
// does only the first part of a request.
func (w *World) apply(op *Op, now int64, stop int) (out Out) {
	defer func() {
		for i := range w.Keys {
			w.Keys[i].tidy()
		}
	}()
	if op.Policy.Algorithm == limiter.Attempts {
		return w.attempts(op, now, stop)
	}
	if op.Policy.Algorithm == limiter.Concurrency {
		return w.slots(op, now)
	}
	k, r := &w.Keys[op.Key], op.rules()
	switch op.Verb {
	case Add:
		return w.add(op, r, now, stop)
	case Allow, AllowUpTo, Reserve, ReserveUpTo:
		return w.request(op, now, stop)
	case Wait: // some of its time has passed when it is decided; if it is hurried, all of it
		room := func(within int64) float64 { return min(r.Ceiling, float64(within)*r.Leak+op.Units) }
		within := op.For
		if stop == hurried {
			within = 0
		}
		if out.Result = k.take(r, op.Units, false, room(within), now); !out.Result.Allowed {
			out.Result.RetryAfter, out.longest = k.wait(r, now, room(op.For), op.Units), k.wait(r, now, room(0), op.Units)
		}
	case Check:
		out.Result = w.tried(op, r, now, stop, func() (limiter.Result, bool) {
			return k.check(r, op.Units, now), !op.InTx && op.Units > 0 && r.possible(op.Units) && !k.fits(r, now, r.Capacity, op.Units)
		})
	case Usage:
		out.Usage = w.usage(op, r, now)
	case Sum:
		out.Sum = k.Sum
	case Charge:
		out.Result = k.charge(r, op.Units, now)
	case Refund:
		out.Result = k.back(r, now, func(s algorithm.State, at int64) float64 { return s.Refund(&k.Rules, now, at, op.Units) })
	case Undo:
		out.Result = w.undo(op, r, now)
	case Block:
		k.block(r, op.For, now, 0)
	case Unblock:
		k.Blocked = 0
	case Reset:
		w.reset(op.Key)
	case Settle, Cancel:
		return w.end(op, now)
	default:
		return w.several(op, now, stop)
	}
	return out
}

// reset forgets a key. Units of its reservations go back no more.
func (w *World) reset(key int) {
	w.Keys[key] = Key{Sum: w.Keys[key].Sum}
	for i := range w.Held {
		if h := &w.Held[i]; h.Key == key && h.State == open {
			h.Units = 0
		}
	}
}

// undo gives back what is left of an operation's grant.
func (w *World) undo(op *Op, r *Rules, now int64) limiter.Result {
	k := &w.Keys[op.Key]
	i := slices.IndexFunc(w.Grants, func(g Grant) bool { return g.Op == op.Undone })
	if i < 0 { // nothing was granted: the key is only read
		return k.changed(r, 0, now)
	}
	g := w.Grants[i]
	if k.State != nil && k.Denied > 0 && k.State.Counts(&k.Rules, k.Denied, g.Grant, &r.Rules, g.Units) {
		k.Blocked = 0
	}
	return k.back(r, now, func(s algorithm.State, at int64) float64 {
		return s.Undo(&k.Rules, now, at, g.Grant, &r.Rules, g.Units)
	})
}

// grant notes what an operation was granted, if an Undo gives it back.
func (w *World) grant(op *Op, number int, k *Key, v algorithm.View, units float64) {
	if op.Kept[number] {
		w.Grants = append(w.Grants, Grant{number, units, v.Counted(k.Clock)})
	}
}

// tried tries a request, and again each time expired reservations that were in its way were
// given back. try reports whether only room was lacking.
func (w *World) tried(op *Op, r *Rules, now int64, stop int, try func() (limiter.Result, bool)) limiter.Result {
	k := &w.Keys[op.Key]
	if stop == whole {
		k.lift(op.Number)
	}
	for {
		was := k.Blocked
		a, lacks := try()
		if !lacks || r.queue() {
			return a
		}
		if k.Blocked != was && stop != whole {
			k.Begun = begun{op.Number, k.Blocked}
		}
		if stop == tried {
			return a
		}
		mine := k.Blocked
		if !w.give(op.Key, now, most(stop)) || stop > gave && stop < lifted {
			return a
		}
		if k.Blocked == mine && mine != was {
			k.Blocked, k.Begun = 0, begun{}
		}
		if stop > lifted {
			return a
		}
	}
}

// request does an Allow, AllowUpTo, Reserve or ReserveUpTo.
func (w *World) request(op *Op, now int64, stop int) (out Out) {
	k, r, upTo, estimated := &w.Keys[op.Key], op.rules(), op.Verb == AllowUpTo || op.Verb == ReserveUpTo, 0.0
	if op.Estimate {
		units, read := w.corrected(op)
		if out.Fault = Unread; !read {
			return out
		}
		reads := *op
		op, estimated, out.Fault, reads.Units = &reads, op.Units, "", units
	}
	piece := op.Units
	if upTo {
		piece = 1
	}
	possible := r.possible(piece)
	if stop == hurried && possible { // it does both in one statement
		out.Fault = Unread
		return out
	}
	ending := false
	if h := w.admitted(op); h != nil && stop != hurried {
		switch {
		case h.Forget > now && !h.overdue(now):
			return h.replay(op)
		case !possible: // it only reads
		case op.Rival && stop == tried && h.State == open: // another ends it before this one, which is denied, looks again
			ending = true
		default: // by a grant, or by the second look of a denial
			w.forget(h, now)
		}
		if stop == forgot {
			return out
		}
	}
	if op.Idem != 0 && op.InTx && possible {
		k.deny(r, now) // it locks the row first
	}
	out.Result = w.tried(op, r, now, stop, func() (limiter.Result, bool) {
		a := k.take(r, op.Units, upTo, r.Ceiling, now)
		return a, !a.Allowed && a.Reason == limiter.ReasonLimit && possible
	})
	switch {
	case !out.Result.Allowed:
	case ending:
		out.Fault = Unread
	case op.Reserves() || op.Idem != 0:
		h := w.admission(op, out.Result, now)
		if h.Reserved == op.Units {
			h.Estimate = estimated
		}
		if op.Reserves() {
			out.Held, out.Expires = h.ID, time.UnixMicro(h.Expires)
		}
		w.Held = append(w.Held, h)
	}
	if out.Result.Allowed && !op.Reserves() {
		w.grant(op, op.Number, k, k.State.Seen(&r.Rules, now, k.Clock, r.Capacity, 0), out.Result.Granted)
	}
	return out
}

// usage reads the key and its reservations.
func (w *World) usage(op *Op, r *Rules, now int64) (u limiter.Usage) {
	k := &w.Keys[op.Key]
	u.Result = k.check(r, 0, now)
	window, windowed := k.State.(*algorithm.Window)
	for _, h := range w.Held {
		if h.Key == op.Key && h.State == open && (r.family() != algorithm.Windows || windowed && h.Grant.EndsAt == window.EndsAt && now < window.EndsAt) {
			u.Reservations++
			u.Reserved += h.Units
		}
	}
	if a, ok := k.State.(*algorithm.Account); ok {
		stand(&u, a.At(max(k.Clock, now)))
	} else {
		u.Reserved = min(u.Reserved, u.Result.Level)
		u.Spent = u.Result.Level - u.Reserved
	}
	if windowed && u.Result.Level > 0 {
		u.WindowEndsAt = time.UnixMicro(window.EndsAt)
	}
	return u
}
