package model

import "slices"

// World is the state of the keys that share a history.
type World struct {
	Keys   []Key
	Held   []Reservation
	Grants []Grant // that an Undo of the history gives back
	Dues   []Due   // blocks that have to begin

	skip int // a reservation that another client is ending: give does not see it
}

// Due is the block that an AllowAll begins after it was denied, as of the key's time then.
type Due struct {
	Op, Key int
	At      int64
}

// Equal reports whether two worlds are the same.
func (w *World) Equal(o *World) bool {
	return slices.EqualFunc(w.Keys, o.Keys, func(a, b Key) bool { return a.equal(&b) }) &&
		slices.Equal(w.Held, o.Held) && slices.Equal(w.Grants, o.Grants) && slices.Equal(w.Dues, o.Dues)
}

// Hash returns a number that equal worlds share.
func (w *World) Hash() uint64 {
	h := uint64(14695981039346656037)
	mix := func(v int64) { h = (h ^ uint64(v)) * 1099511628211 }
	for i := range w.Keys {
		k := &w.Keys[i]
		mix(k.Clock)
		mix(k.Blocked)
		mix(int64(k.Level * (1 << 22)))
		mix(k.Ends)
		mix(int64(len(k.Entries)))
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

// Verb is what an operation does.
type Verb string

// The verbs. Give is no method: it stands for what a request does before it is tried once
// more, if expired reservations were in its way.
const (
	Allow     Verb = "Allow"
	AllowUpTo Verb = "AllowUpTo"
	Wait      Verb = "Wait" // DoWait
	Check     Verb = "Check"
	Usage     Verb = "Usage"
	Charge    Verb = "Charge"
	Refund    Verb = "Refund"
	Undo      Verb = "Undo"
	Block     Verb = "Block"
	Unblock   Verb = "Unblock"
	Reset     Verb = "Reset"
	Reserve   Verb = "Reserve"
	Settle    Verb = "Settle"
	Cancel    Verb = "Cancel"
	AllowAll  Verb = "AllowAll"
	Tx        Verb = "Tx"
	Give      Verb = "Give"

	Savepoint Verb = "Savepoint" // in a Tx
	Release   Verb = "Release"   // of the last savepoint
	Back      Verb = "Back"      // to the last savepoint
)

// Request is one of an AllowAll.
type Request struct {
	Key   int
	Rules *Rules
	Units float64
}

// Op is a call of a verb.
type Op struct {
	Number int // of the operation, for Undo
	Verb   Verb
	Key    int
	Rules  *Rules
	Units  float64
	For    int64 // a Block's time, how long a reservation lasts, or a Wait waits at most
	Idem   int   // the idempotency key; 0 is none
	Held   int   // Settle, Cancel: the reservation
	Undone int   // Undo: the operation

	Requests []Request    // of an AllowAll
	Steps    []Op         // of a Tx
	Commits  bool         // a Tx
	InTx     bool         // it is a step of a Tx
	Of       *Op          // a Give: the request
	Forgets  bool         // a Give only forgets what the request's idempotency key stood for
	Touches  bool         // a Give is a denial that starts no block: of a sum that the request is part of, or its first
	Kept     map[int]bool // the operations whose grants an Undo gives back
	Rival    bool         // another operation may have ended a reservation meanwhile

	Clocks   []int64 // what the clock read between the call and its return
	SQL      bool    // it was a SQL function
	Remember int64   // how long an admission is remembered after its end
}

// Out is what came of a call.
type Out struct {
	Lost    bool   // the answer: it may have happened or not
	Pending bool   // it is Lost because the call has not returned, and may not have begun
	Fault   string // an error that changes nothing
	Answer  Answer
	Held    int // a Reserve's reservation; 0 is none
	Expires int64

	Spent, Reserved float64 // of a Usage
	Reservations    int
	WindowEnds      int64

	Longest int64 // RetryAfter of a Wait that is denied, if it had no time left
	Unmoved bool  // a Settle has not changed the key: see Explain

	Each     []Answer // of an AllowAll
	DeniedBy int
	Steps    []Out // of a Tx
}

// The faults.
const (
	Invalid = "invalid"
	Unknown = "no reservation"
	Ended   = "reservation ended"
)

// apply does op at one reading of the clock, and returns the answer. Unless stop is whole, it
// does only the first part of a request.
func (w *World) apply(op *Op, now int64, stop int) (out Out) {
	k := &w.Keys[op.Key]
	switch op.Verb {
	case Allow, AllowUpTo, Reserve:
		return w.request(op, now, stop)
	case Wait:
		out.Answer, out.Longest = k.await(op.Rules, op.Units, op.For, stop == hurried, now)
	case Check:
		out.Answer = w.tried(op, op.Rules, now, stop, func() (Answer, bool) {
			a := k.check(op.Rules, op.Units, now)
			return a, !op.InTx && op.Units <= op.Rules.capacity() && op.Units > k.freeFor(op.Rules, now)
		})
	case Usage:
		out = w.usage(op, now)
	case Charge:
		out.Answer = k.charge(op.Rules, op.Units, now)
	case Refund:
		out.Answer = k.refund(op.Rules, op.Units, now)
	case Undo:
		out.Answer = k.undo(op.Rules, w.grantOf(op.Undone), now)
	case Block:
		k.block(op.For, now)
	case Unblock:
		k.Blocked = 0
	case Reset:
		*k = Key{}
		for i := range w.Held {
			if h := &w.Held[i]; h.Key == op.Key && h.State == open {
				h.Units = 0
			}
		}
	case Settle, Cancel:
		return w.end(op, now)
	case AllowAll:
		return w.all(op, now, stop)
	}
	return out
}

// freeFor returns the units that fit.
func (k *Key) freeFor(r *Rules, now int64) float64 { return r.capacity() - k.used(r, now) }

// grantOf returns what an operation was granted, nil if nothing.
func (w *World) grantOf(op int) *Grant {
	for i := range w.Grants {
		if w.Grants[i].Op == op {
			return &w.Grants[i]
		}
	}
	return nil
}

// tried tries a request, and again each time expired reservations that were in its way were
// given back. try reports whether only room was lacking.
func (w *World) tried(op *Op, r *Rules, now int64, stop int, try func() (Answer, bool)) Answer {
	k := &w.Keys[op.Key]
	if stop == whole {
		k.lift(op.Number)
	}
	for {
		was := k.Blocked
		a, lacks := try()
		if !lacks || r.Kind == Queue {
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

// request does an Allow, AllowUpTo or Reserve.
func (w *World) request(op *Op, now int64, stop int) (out Out) {
	k, piece := &w.Keys[op.Key], op.Units
	if op.Verb == AllowUpTo {
		piece = 1
	}
	fits := func() bool {
		c := k.clone()
		return c.take(op.Rules, op.Units, op.Verb == AllowUpTo, now).Allowed
	}
	if h := w.admitted(op); h != nil {
		switch {
		case h.Forget > now && !h.overdue(now):
			return w.replay(op, h)
		case piece > op.Rules.capacity(): // it only reads
		case op.InTx || h.Forget > now || fits(): // else a denial leaves it
			w.forget(h, now)
		}
		if stop == forgot {
			return out
		}
	}
	if op.Idem != 0 && op.InTx && piece <= op.Rules.capacity() {
		k.deny(op.Rules, now) // it locks the row first
	}
	out.Answer = w.tried(op, op.Rules, now, stop, func() (Answer, bool) {
		if h := w.admitted(op); h != nil && fits() {
			w.forget(h, now)
		}
		a := k.take(op.Rules, op.Units, op.Verb == AllowUpTo, now)
		return a, !a.Allowed && a.Reason == "limit" && piece <= op.Rules.capacity()
	})
	if !out.Answer.Allowed {
		return out
	}
	g := k.grant(op.Rules, op.Number, out.Answer.Granted)
	if op.Kept[op.Number] && op.Verb != Reserve {
		w.Grants = append(w.Grants, g)
	}
	if op.Verb == Reserve || op.Idem != 0 {
		h := Reservation{
			ID: -op.Number, Key: op.Key, Rules: *op.Rules, Idem: op.Idem, State: spent,
			Reserved: op.Units, Units: op.Units, Level: out.Answer.Level, Grant: g,
			Made: k.Clock, Expires: k.Clock + op.For, Forget: k.Clock + op.For + op.Remember,
		}
		if op.Verb == Reserve {
			h.State = open
			out.Held, out.Expires = h.ID, h.Expires
		}
		w.Held = append(w.Held, h)
	}
	return out
}

// usage reads the key and its reservations.
func (w *World) usage(op *Op, now int64) (out Out) {
	k := &w.Keys[op.Key]
	out.Answer = k.check(op.Rules, 0, now)
	sum := 0.0
	for _, h := range w.Held {
		if h.Key == op.Key && h.State == open && (op.Rules.Kind != Window || h.Grant.Ends == k.Ends && k.Known && now < k.Ends) {
			out.Reservations++
			sum += h.Units
		}
	}
	out.Reserved = min(sum, out.Answer.Level)
	out.Spent = out.Answer.Level - out.Reserved
	if op.Rules.Kind == Window && out.Answer.Level > 0 {
		out.WindowEnds = k.Ends
	}
	return out
}

// tries reports whether a verb is tried again after expired reservations went back.
func (op *Op) tries() bool {
	switch op.Verb {
	case Allow, AllowUpTo, Reserve, Check, AllowAll:
		return true
	}
	return false
}

// asks reports whether op is a request for a key.
func (op *Op) asks(key int) bool {
	return op.Verb != AllowAll && op.Key == key ||
		slices.ContainsFunc(op.Requests, func(q Request) bool { return q.Key == key })
}
