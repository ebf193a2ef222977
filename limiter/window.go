package limiter

import (
	"sort"
)

// fixedWindow counts in one window, of which it keeps the end.
type fixedWindow struct {
	count    float64
	capacity float64 // as of the last decision
	endsAt   int64
}

func (w *fixedWindow) level(*rules, int64) float64 { return w.count }

func (w *fixedWindow) used(r *rules, now int64) float64 {
	if now >= w.endsAt {
		return 0
	}
	return min(r.brim(w.count, w.capacity), w.count)
}

func (w *fixedWindow) advance(r *rules, now, _ int64) {
	w.count = w.used(r, now)
	w.capacity = r.capacity
	if now < w.endsAt {
		return
	}
	switch {
	case r.calendar != nil:
		w.endsAt = r.calendar.endOf(now)
	case r.aligned:
		w.endsAt = (now/r.period + 1) * r.period
	default:
		w.endsAt = now + r.period
	}
}

func (w *fixedWindow) put(_ int64, units float64) { w.count += units }

func (w *fixedWindow) fill(r *rules, _ int64, units float64) float64 {
	units = min(units, r.capacity)
	added := max(0, min(units, r.capacity-w.count))
	w.count = max(w.count, min(r.capacity, w.count+units))
	return added
}

func (w *fixedWindow) clone() state { c := *w; return &c }

func (w *fixedWindow) seen(float64, float64) view { c := *w; return &c }

func (w *fixedWindow) less(units float64) view {
	c := *w
	c.count = max(0, c.count-units)
	return &c
}

func (w *fixedWindow) refund(r *rules, now, _ int64, units float64) float64 {
	used := w.used(r, now)
	w.count, w.capacity = max(0, used-units), r.capacity
	return min(units, used)
}

func (w *fixedWindow) fitsAt(_ *rules, at int64, room, need float64) int64 {
	switch {
	case free(room, 0, need) < 1:
		return never
	case at >= w.endsAt || free(room, w.count, need) >= 1:
		return at
	}
	return w.endsAt
}

func (w *fixedWindow) emptyAt(_ *rules, at int64) int64 {
	if w.count == 0 {
		return at
	}
	return max(at, w.endsAt)
}

// slidingCounter counts in the window that ends at endsAt and keeps the count
// of the one before.
type slidingCounter struct {
	current, previous float64
	capacity          float64 // as of the last decision
	endsAt            int64
}

// level weighs the window before by what the sliding window covers of it.
func (w *slidingCounter) level(r *rules, at int64) float64 {
	covered := min(r.period, w.endsAt-at)
	return float64(float64(w.previous*float64(covered))/float64(r.period)) + w.current
}

func (w *slidingCounter) advance(r *rules, _, at int64) {
	brim := r.brim(max(w.current, w.previous), w.capacity)
	w.capacity = r.capacity
	if at >= w.endsAt {
		w.previous = w.current
		if at >= w.endsAt+r.period {
			w.previous = 0
		}
		w.current = 0
		w.endsAt = (at/r.period + 1) * r.period
	}
	w.previous = min(brim, w.previous)
	w.current = min(brim, w.current)
}

func (w *slidingCounter) put(_ int64, units float64) { w.current += units }

func (w *slidingCounter) fill(r *rules, at int64, units float64) float64 {
	added := max(0, min(min(units, r.capacity), r.capacity-w.level(r, at)))
	w.current += added
	return added
}

func (w *slidingCounter) clone() state { c := *w; return &c }

func (w *slidingCounter) seen(float64, float64) view { c := *w; return &c }

func (w *slidingCounter) less(units float64) view {
	c := *w
	c.current = max(0, c.current-units)
	return &c
}

// refund takes from the current window first, then from the one before.
func (w *slidingCounter) refund(r *rules, now, at int64, units float64) float64 {
	w.advance(r, now, at)
	back := min(units, w.current+w.previous)
	w.previous = max(0, w.previous-max(0, units-w.current))
	w.current = max(0, w.current-units)
	return back
}

func (w *slidingCounter) fitsAt(r *rules, at int64, room, need float64) int64 {
	if free(room, 0, need) < 1 {
		return never
	}
	if left := w.endsAt - at; left > 0 {
		wait := sort.Search(int(left), func(us int) bool {
			return free(room, w.level(r, at+int64(us)), need) >= 1
		})
		if int64(wait) < left {
			return at + int64(wait)
		}
	}
	next := slidingCounter{previous: w.current, endsAt: w.endsAt + r.period}
	return w.endsAt + int64(sort.Search(int(r.period), func(us int) bool {
		return free(room, next.level(r, w.endsAt+int64(us)), need) >= 1
	}))
}

func (w *slidingCounter) emptyAt(r *rules, at int64) int64 {
	switch {
	case w.current > 0:
		return w.endsAt + r.period
	case w.previous > 0:
		return max(at, w.endsAt)
	}
	return at
}

// settle changes nothing but the window that the hold was counted in.
func (w *fixedWindow) settle(r *rules, now, _ int64, h *held, actual float64, fresh bool) float64 {
	if fresh || now >= w.endsAt { // it has had a block or a Reset since
		w.count, w.endsAt, w.capacity = 0, h.endsAt, r.capacity
	}
	if w.endsAt != h.endsAt {
		return 0
	}
	used, back := w.used(r, now), max(0, h.units-actual)
	w.count = max(0, used-back) + max(0, actual-h.units)
	return min(used, back)
}

// settle gives back to the window that the hold was counted in, if it is the
// current one or, of the same period, the one before.
func (w *slidingCounter) settle(r *rules, now, at int64, h *held, actual float64, _ bool) (gone float64) {
	w.advance(r, now, at)
	back := max(0, h.units-actual)
	switch w.endsAt {
	case h.endsAt:
		gone = min(w.current, back)
		w.current = max(0, w.current-back)
	case h.endsAt + h.period:
		if r.period != h.period { // that was another window
			break
		}
		gone = min(w.previous, back)
		w.previous = max(0, w.previous-back)
	}
	w.current += max(0, actual-h.units)
	return gone
}
