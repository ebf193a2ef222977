package limiter

import (
	"math"
	"sort"
)

// bucket is a leaky bucket, and by the same arithmetic a queue, a token bucket
// (level is burst less the tokens left) and GCRA (level is how far the
// theoretical arrival time is ahead, in units).
type bucket struct {
	units    float64
	capacity float64 // as of the last decision
	leakedAt int64   // start of the running tick
	ticket   int64   // of a queue: names the last place given
}

func (b *bucket) level(*rules, int64) float64 { return b.units }

// after is what is left once steps ticks have leaked.
func (b *bucket) after(r *rules, steps int64) float64 {
	// The product is rounded before it is subtracted, as in SQL: a fused
	// multiply-add would part the two.
	return max(0, b.units-float64(float64(steps)*r.leak))
}

func (b *bucket) advance(r *rules, _, at int64) {
	steps := (at - b.leakedAt) / r.tick
	b.units = min(r.brim(b.units, b.capacity), b.after(r, steps))
	b.capacity = r.capacity
	if b.units == 0 {
		b.leakedAt = at
	} else {
		b.leakedAt += steps * r.tick
	}
}

func (b *bucket) put(at int64, units float64) {
	b.units += units
	b.ticket = max(b.ticket+1, at)
}

func (b *bucket) fill(r *rules, at int64, units float64) float64 {
	units = min(units, r.capacity)
	added := max(0, min(units, r.capacity-b.units))
	b.units = max(b.units, min(r.capacity, b.units+units))
	b.ticket = max(b.ticket+1, at)
	return added
}

func (b *bucket) clone() state { c := *b; return &c }

func (b *bucket) seen(float64, float64) view { c := *b; return &c }

func (b *bucket) less(units float64) view {
	c := *b
	c.units = max(0, c.units-units)
	return &c
}

func (b *bucket) refund(r *rules, now, at int64, units float64) float64 {
	b.advance(r, now, at)
	back := min(units, b.units)
	b.units = max(0, b.units-units)
	return back
}

func (b *bucket) fitsAt(r *rules, at int64, room, need float64) int64 {
	if free(room, 0, need) < 1 {
		return never
	}
	return b.first(r, at, b.units-(room-need), func(units float64) bool { return free(room, units, need) >= 1 })
}

func (b *bucket) emptyAt(r *rules, at int64) int64 {
	return b.first(r, at, b.units, func(units float64) bool { return units == 0 })
}

// first is the first moment when ok holds of what is left in the bucket, about
// when that many units have leaked. ok holds of an empty one. A search rather
// than a division: it is exact. It starts where a division points.
func (b *bucket) first(r *rules, at int64, leaks float64, ok func(units float64) bool) int64 {
	if ok(b.after(r, (at-b.leakedAt)/r.tick)) {
		return at
	}
	most := math.Ceil(b.units/r.leak) + 1
	if most >= float64(never/2/r.tick) {
		return never
	}
	enough := func(steps int) bool { return ok(b.after(r, int64(steps))) }
	low, high := 0, int(most) // it is between these
	guess := min(max(int(leaks/r.leak), low), high)
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
	return max(at, b.leakedAt+int64(steps)*r.tick)
}

// settle gives back at most what has not leaked of the hold since it was made:
// more would let units pass twice.
func (b *bucket) settle(r *rules, now, at int64, h *held, actual float64, _ bool) float64 {
	b.advance(r, now, at)
	age := at - h.countedAt
	gone := max(float64(float64(age/r.tick)*r.leak), float64(float64(age/h.tick)*h.leak))
	used, back := b.units, max(0, min(h.units-actual, h.units-gone))
	b.units = max(0, used-back) + max(0, actual-h.units)
	return min(used, back)
}
