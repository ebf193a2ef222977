package limiter

import (
	"slices"
	"sort"
)

// slidingLog keeps when each decision of the last period was, and the running
// total of units after it; base is the total of all that has left.
type slidingLog struct {
	entries  []int64
	totals   []float64
	base     float64
	capacity float64 // as of the last decision
}

func (l *slidingLog) last() float64 {
	if n := len(l.totals); n > 0 {
		return max(l.base, l.totals[n-1])
	}
	return l.base
}

func (l *slidingLog) level(*rules, int64) float64 { return l.last() - l.base }

// advance drops what is one period old, and then as much as is above the
// capacity, should that have been lowered.
func (l *slidingLog) advance(r *rules, _, at int64) {
	last, over := l.last(), overdrawn(l.last()-l.base, l.capacity)
	l.capacity = r.capacity
	gone := sort.Search(len(l.entries), func(i int) bool { return l.entries[i] > at-r.period })
	if gone > 0 {
		l.base = max(l.base, l.totals[gone-1])
	}
	if !over {
		l.base = max(l.base, last-r.capacity)
	}
	l.entries = slices.Delete(l.entries, 0, gone)
	l.totals = slices.Delete(l.totals, 0, gone)
}

// rebase starts the running totals again from zero before they get too large
// to keep the last digits of what is added.
func (l *slidingLog) rebase(r *rules) {
	if l.last() <= r.rebaseAbove() {
		return
	}
	for i := range l.totals {
		l.totals[i] -= l.base
	}
	l.base = 0
}

func (l *slidingLog) put(at int64, units float64) {
	l.entries = append(l.entries, at)
	l.totals = append(l.totals, l.last()+units)
}

func (l *slidingLog) fill(r *rules, at int64, units float64) float64 {
	added := max(0, min(min(units, r.capacity), r.capacity-l.level(r, at)))
	if l.last()+added > l.last() { // else it is too small to be an entry
		l.put(at, added)
	}
	return added
}

// refund takes the newest entries first; the one that it cuts keeps its time.
func (l *slidingLog) refund(r *rules, now, at int64, units float64) float64 {
	l.advance(r, now, at)
	back := min(units, l.level(r, at))
	keep := max(l.base, l.last()-units)
	kept := 0
	if keep > l.base {
		kept = sort.SearchFloat64s(l.totals, keep) + 1
		l.totals[kept-1] = keep
	}
	l.entries, l.totals = l.entries[:kept], l.totals[:kept]
	return back
}

func (l *slidingLog) clone() state {
	return &slidingLog{slices.Clone(l.entries), slices.Clone(l.totals), l.base, l.capacity}
}

// seen is what the statements return of a log. Which entry has to leave is
// asked of the arithmetic that decides: a sum computed for it, such as
// last + need - room, can round to another side.
func (l *slidingLog) seen(room, need float64) view {
	v := logView{units: l.last() - l.base}
	if n := len(l.entries); n > 0 {
		v.newest = l.entries[n-1]
		if i := sort.Search(n, func(i int) bool { return free(room, l.last()-l.totals[i], need) >= 1 }); i < n {
			v.frees = l.entries[i]
		}
	}
	return v
}

// logView is a log as its statements return it, without the entries.
type logView struct {
	units  float64
	newest int64 // the youngest entry, 0 without one
	frees  int64 // the entry that has to leave before the rest of the ask fits
}

func (v logView) level(*rules, int64) float64 { return v.units }

func (v logView) less(units float64) view {
	v.units = max(0, v.units-units)
	return v
}

func (v logView) fitsAt(r *rules, at int64, room, need float64) int64 {
	switch {
	case free(room, 0, need) < 1:
		return never
	case free(room, v.units, need) >= 1:
		return at
	}
	return max(at, v.frees+r.period)
}

func (v logView) emptyAt(r *rules, at int64) int64 {
	if v.units == 0 {
		return at
	}
	return max(at, v.newest+r.period)
}

// settle gives back what the hold's own entry holds: to take the newest entries
// instead would leave room for them when that one leaves.
func (l *slidingLog) settle(r *rules, _, at int64, h *held, actual float64, _ bool) float64 {
	l.capacity = r.capacity
	after := func(us int64) int {
		return sort.Search(len(l.entries), func(i int) bool { return l.entries[i] > us })
	}
	// The entries stay: the next decision drops what has left.
	if gone := after(at - r.period); gone > 0 {
		l.base = max(l.base, l.totals[gone-1])
	}
	through, before := after(h.countedAt), after(h.countedAt-1)
	total := func(n int) float64 {
		if n == 0 {
			return l.base
		}
		return l.totals[n-1]
	}
	there, from := total(through), max(l.base, total(before))
	back := max(0, min(h.units-actual, there-from))
	if back > 0 {
		top, lower := there-back, back
		empty := top <= from
		if empty {
			lower = there - from
		}
		for i := before; i < through; i++ {
			l.totals[i] = min(l.totals[i], top)
		}
		for i := through; i < len(l.totals); i++ {
			l.totals[i] -= lower
		}
		if empty { // nothing is left of it
			l.entries = slices.Delete(l.entries, before, through)
			l.totals = slices.Delete(l.totals, before, through)
		}
	}
	if excess := max(0, actual-h.units); l.last()+excess > l.last() { // else it is too small to be an entry
		l.put(at, excess)
	}
	return back
}
