package algorithm

import (
	"math"
	"sort"
)

// Bucket is a leaky bucket. The same arithmetic makes a queue, a token bucket (the level
// is the burst less the tokens left) and GCRA (the level is the distance to the
// theoretical arrival time, in units).
type Bucket struct {
	Units    float64
	LeakedAt int64 // start of the current tick
	Ticket   int64 // queue: the last place given
}

func (b *Bucket) Level(*Rules, int64) float64 { return b.Units }

// after returns the units left after steps ticks.
func (b *Bucket) after(r *Rules, steps int64) float64 {
	// The product is rounded before it is subtracted, as in SQL: a fused
	// multiply-add would give other results.
	return max(0, b.Units-float64(float64(steps)*r.Leak))
}

func (b *Bucket) Used(r *Rules, _, at int64) float64 { return b.after(r, (at-b.LeakedAt)/r.Tick) }

func (b *Bucket) Advance(r *Rules, _, at int64) {
	steps := (at - b.LeakedAt) / r.Tick
	b.Units = b.after(r, steps)
	if b.Units == 0 {
		b.LeakedAt = at
	} else {
		b.LeakedAt += steps * r.Tick
	}
}

func (b *Bucket) Deny(r *Rules, now, at int64) { b.Advance(r, now, at) }

func (b *Bucket) Put(at int64, units float64) {
	b.Units += units
	b.Ticket = max(b.Ticket+1, at)
}

func (b *Bucket) Charge(r *Rules, now, at int64, units float64) float64 {
	b.Advance(r, now, at)
	units = min(units, r.Capacity)
	added := max(0, min(units, r.Capacity-b.Units))
	b.Units = max(b.Units, min(r.Capacity, b.Units+units))
	b.Ticket = max(b.Ticket+1, at)
	return added
}

func (b *Bucket) Clone() State { c := *b; return &c }

func (b *Bucket) Seen(r *Rules, now, at int64, _, _ float64) View {
	c := *b
	c.Advance(r, now, at)
	return &c
}

func (b *Bucket) Counted(int64) Grant { return Grant{At: b.LeakedAt} }

// IdleAt adds a tick if rounding made the division one tick too early.
func (b *Bucket) IdleAt(r *Rules) int64 {
	if b.Units == 0 {
		return 0
	}
	ticks := math.Ceil(b.Units / r.Leak)
	if b.Units > float64(ticks*r.Leak) {
		ticks++
	}
	if ticks >= float64(MaxLifetime/r.Tick) {
		return b.LeakedAt + MaxLifetime
	}
	return b.LeakedAt + int64(ticks)*r.Tick
}

func (b *Bucket) Less(units float64) View {
	c := *b
	c.Units = max(0, c.Units-units)
	return &c
}

func (b *Bucket) Part(_ *Rules, part float64) State {
	c := *b
	c.Units *= part
	return &c
}

func (b *Bucket) Refund(r *Rules, now, at int64, units float64) float64 {
	b.Advance(r, now, at)
	back := min(units, b.Units)
	b.Units = max(0, b.Units-units)
	return back
}

func (b *Bucket) FitsAt(r *Rules, at int64, room, need float64) int64 {
	if Fit(room, 0, need) < 1 {
		return Never
	}
	return b.first(r, at, b.Units-(room-need), func(units float64) bool { return Fit(room, units, need) >= 1 })
}

func (b *Bucket) EmptyAt(r *Rules, at int64) int64 {
	return b.first(r, at, b.Units, func(units float64) bool { return units == 0 })
}

// first returns the first moment when ok is true of the units left: about when leaks units
// have leaked. ok is true of an empty bucket. It searches around the result of a
// division, which alone would not be exact.
func (b *Bucket) first(r *Rules, at int64, leaks float64, ok func(units float64) bool) int64 {
	if ok(b.after(r, (at-b.LeakedAt)/r.Tick)) {
		return at
	}
	most := math.Ceil(b.Units/r.Leak) + 1
	if most >= float64(Never/2/r.Tick) {
		return Never
	}
	enough := func(steps int) bool { return ok(b.after(r, int64(steps))) }
	low, high := 0, int(most) // it is between these
	guess := min(max(int(leaks/r.Leak), low), high)
	for width := 1; low < high; width *= 4 {
		if from, to := max(low, guess-width), min(high, guess+width); enough(to) {
			if high = to; from == low || !enough(from) {
				low = from
				break
			}
			high = from
		} else {
			low = to + 1
		}
	}
	steps := low + sort.Search(high-low, func(i int) bool { return enough(low + i) })
	return max(at, b.LeakedAt+int64(steps)*r.Tick)
}

// Settle gives back at most the units of the reservation that cannot have leaked: more
// would let units pass twice.
func (b *Bucket) Settle(r *Rules, now, at int64, h Reservation, actual float64, _ bool) float64 {
	b.Advance(r, now, at)
	used, back := b.Units, max(0, min(h.Units-actual, h.Units-b.gone(r, &h.Rules, at-h.CountedAt)))
	b.Units = max(0, used-back) + max(0, actual-h.Units)
	return min(used, back)
}

func (b *Bucket) Undo(r *Rules, now, at int64, g Grant, by *Rules, units float64) float64 {
	b.Advance(r, now, at)
	used, back := b.Units, max(0, min(units, units-b.gone(r, by, at-g.At)))
	b.Units = max(0, used-back)
	return min(used, back)
}

func (b *Bucket) Counts(r *Rules, at int64, g Grant, by *Rules, units float64) bool {
	return units > b.gone(r, by, at-g.At)
}

// gone returns the units that may have leaked in age, by the faster of two rules.
func (b *Bucket) gone(r, by *Rules, age int64) float64 {
	return max(float64(float64(age/r.Tick)*r.Leak), float64(float64(age/by.Tick)*by.Leak))
}
