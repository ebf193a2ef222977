package model

import (
	"math"
	"slices"
)

// Grant is where a decision counted its units, for Undo.
type Grant struct {
	Op    int // the operation's number
	Units float64
	At    int64 // a bucket: since when they leak; a log: their entry
	Ends  int64 // of the window
}

// grant returns where units were just counted.
func (k *Key) grant(r *Rules, op int, units float64) Grant {
	g := Grant{Op: op, Units: units}
	switch r.Kind {
	case Window, Counter:
		g.Ends = k.Ends
	case Log:
		g.At = k.Clock
	default:
		g.At = k.Since
	}
	return g
}

// take requests units: all or nothing, or what fits.
func (k *Key) take(r *Rules, units float64, upTo bool, now int64) Answer {
	piece := units
	if upTo {
		piece = 1
	}
	if piece > r.capacity() { // it can never fit: the key is only read
		a := k.standing(r, now)
		a.Reason = "limit"
		k.wait(r, now, piece, &a)
		return a
	}
	k.begin(now)
	e, blocked, granted := k.at(now), k.blocked(now), 0.0
	for free := r.capacity() - k.used(r, now); !blocked && granted+piece <= min(units, free); {
		granted += piece
	}
	if granted == 0 {
		k.deny(r, now)
		if !blocked && r.BlockFor > 0 {
			k.Blocked = e + r.BlockFor
		}
	} else {
		k.pass(r, now)
		k.add(r, e, granted)
		k.decided(r, now)
	}
	a := k.standing(r, now)
	a.Allowed, a.Granted = granted > 0, granted
	if a.Allowed {
		k.delay(r, a.Level-granted, &a)
	} else {
		a.Reason = "limit"
		if blocked {
			a.Reason = "blocked"
		}
	}
	if granted < units {
		k.wait(r, now, min(piece, units-granted), &a)
	}
	return a
}

// await requests units of a queue, at most so many microseconds before their turn. Some of
// that time has passed when the request is decided; if it is hurried, all of it. longest is
// RetryAfter for one that is.
func (k *Key) await(r *Rules, units float64, most int64, hurried bool, now int64) (a Answer, longest int64) {
	if units > r.capacity() {
		a = k.take(r, units, false, now)
		return a, a.RetryAfter
	}
	room := func(within int64) *Rules {
		q := *r
		q.Burst = min(r.Burst, units+r.leak(within))
		return &q
	}
	within := most
	if hurried {
		within = 0
	}
	if k.used(r, now)+units <= room(within).capacity() && !k.blocked(now) {
		return k.take(r, units, false, now), 0
	}
	k.begin(now)
	e, blocked := k.at(now), k.blocked(now)
	k.deny(r, now)
	if !blocked && r.BlockFor > 0 {
		k.Blocked = e + r.BlockFor
	}
	a = k.standing(r, now)
	if a.Reason = "limit"; blocked {
		a.Reason = "blocked"
	}
	last := a
	k.wait(room(most), now, units, &a)
	k.wait(room(0), now, units, &last)
	return a, last.RetryAfter
}

// delay sets a queue's delay behind units.
func (k *Key) delay(r *Rules, ahead float64, a *Answer) {
	if r.Kind == Queue {
		a.Delay = int64(math.Round(ahead * float64(r.Period) / r.Limit))
	}
}

// check reads what a request would be answered.
func (k *Key) check(r *Rules, units float64, now int64) Answer {
	a := k.standing(r, now)
	a.Allowed = !k.blocked(now) && (units == 0 || units <= r.capacity()-k.used(r, now))
	if a.Allowed {
		a.Granted = units
		k.delay(r, a.Level, &a)
		return a
	}
	a.Reason = "limit"
	if k.blocked(now) {
		a.Reason = "blocked"
	}
	k.wait(r, now, units, &a)
	return a
}

// charge records units up to the burst.
func (k *Key) charge(r *Rules, units float64, now int64) Answer {
	k.begin(now)
	added := max(0, min(units, r.Burst-k.used(r, now)))
	if added > 0 || r.Kind != Counter && r.Kind != Log {
		k.pass(r, now)
		if added > 0 {
			k.add(r, k.at(now), added)
		}
	} else if r.Kind == Log {
		k.Keep = max(k.Keep, r.Period)
	}
	k.decided(r, now)
	a := k.standing(r, now)
	a.Allowed, a.Granted = true, added
	return a
}

// settleWindow is settleTime for a Refund or an Undo. They begin no window of a counter that
// has had none.
func (k *Key) settleWindow(r *Rules, now int64) {
	if r.Kind != Counter || k.Ends != 0 {
		k.settleTime(r, now)
	}
}

// settleTime lets time pass by the numbers of the last decision, before units go back.
func (k *Key) settleTime(r *Rules, now int64) {
	switch e := k.at(now); r.Kind {
	case Counter:
		k.turn(k.Span, e)
	case Log:
		k.forget(e - k.Keep)
	case Bucket, Queue:
		if k.Counted {
			k.drain(&k.Last, e)
		}
	}
}

// back answers that units went back.
func (k *Key) back(r *Rules, units float64, now int64) Answer {
	k.Clock = k.at(now)
	a := k.standing(r, now)
	a.Allowed, a.Granted = true, units
	return a
}

// refund gives units back, at most those in use.
func (k *Key) refund(r *Rules, units float64, now int64) Answer {
	if !k.Known {
		a := k.standing(r, now)
		a.Allowed = true
		return a
	}
	k.settleWindow(r, now)
	left := units
	out := func(from *float64) {
		n := min(left, *from)
		*from, left = *from-n, left-n
	}
	switch {
	case r.Kind == Log: // the newest first
		for i := len(k.Entries) - 1; i >= 0; i-- {
			out(&k.Entries[i].Units)
		}
		k.tidy()
	case r.Kind == Window && now >= k.Ends: // it is over
	default:
		out(&k.Level)
		if r.Kind == Counter {
			out(&k.Before)
		}
	}
	return k.back(r, units-left, now)
}

// tidy drops entries of which nothing is left.
func (k *Key) tidy() {
	k.Entries = slices.DeleteFunc(k.Entries, func(x Entry) bool { return x.Units <= 0 })
}

// undo gives back what is left of a grant. A request without a grant is only read.
func (k *Key) undo(r *Rules, g *Grant, now int64) Answer {
	if g == nil || !k.Known {
		a := k.standing(r, now)
		a.Allowed = true
		return a
	}
	k.settleWindow(r, now)
	return k.back(r, k.remove(r, *g, r, now), now)
}

// remove takes units of a grant by rules out of where they were counted.
func (k *Key) remove(r *Rules, g Grant, by *Rules, now int64) (gone float64) {
	out := func(from *float64, most float64) float64 {
		n := max(0, min(most, *from))
		*from -= n
		return n
	}
	switch r.Kind {
	case Window:
		if k.Ends == g.Ends && now < k.Ends {
			return out(&k.Level, g.Units)
		}
	case Counter:
		switch g.Ends {
		case k.Ends:
			return out(&k.Level, g.Units)
		case k.Ends - k.Span:
			return out(&k.Before, g.Units)
		}
	case Log:
		for i := range k.Entries {
			if k.Entries[i].At == g.At {
				gone = out(&k.Entries[i].Units, g.Units)
			}
		}
		k.tidy()
		return gone
	default: // what has leaked may have been used by others
		age := max(0, k.at(now)-g.At) // after a Reset the clock may be set back
		leaked := by.leak(age)
		if k.Counted {
			leaked = max(leaked, k.Last.leak(age))
		}
		return out(&k.Level, g.Units-leaked)
	}
	return 0
}

// block denies the key for a while.
func (k *Key) block(us, now int64) {
	k.begin(now)
	k.Blocked = max(k.Blocked, k.at(now)+us)
}
