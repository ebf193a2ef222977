package algorithm

import (
	"slices"
	"sort"
)

// Log keeps the time of each decision of the last period and the running total of units
// after it. base is the total of all entries that have left.
type Log struct {
	entries []int64
	totals  []float64
	base    float64
	Keep    int64 // the longest period requested: an entry may count for that long
}

func (l *Log) last() float64 {
	if n := len(l.totals); n > 0 {
		return max(l.base, l.totals[n-1])
	}
	return l.base
}

// after returns the number of entries up to time us.
func (l *Log) after(us int64) int {
	return sort.Search(len(l.entries), func(i int) bool { return l.entries[i] > us })
}

// left returns the number of entries that have left a window of that period, and the
// total of all that have.
func (l *Log) left(period, at int64) (gone int, base float64) {
	if gone = l.after(at - period); gone > 0 {
		return gone, max(l.base, l.totals[gone-1])
	}
	return 0, l.base
}

func (l *Log) Used(r *Rules, _, at int64) float64 {
	_, base := l.left(r.Period, at)
	return l.last() - base
}

// Advance drops entries that are one period old.
func (l *Log) Advance(r *Rules, _, at int64) {
	l.Keep = max(l.Keep, r.Period)
	l.drop(r.Period, at)
	l.rebase(r)
}

func (l *Log) drop(period, at int64) {
	gone, base := l.left(period, at)
	l.base = base
	l.entries = slices.Delete(l.entries, 0, gone)
	l.totals = slices.Delete(l.totals, 0, gone)
}

// Deny keeps the entries: another period may still count them.
func (l *Log) Deny(r *Rules, _, _ int64) { l.Keep = max(l.Keep, r.Period) }

// rebase starts the running totals again from zero before they are too large to keep the
// last digits of an addition.
func (l *Log) rebase(r *Rules) {
	if l.last() <= r.rebaseAbove() {
		return
	}
	for i := range l.totals {
		l.totals[i] -= l.base
	}
	l.base = 0
}

func (l *Log) Put(at int64, units float64) {
	l.entries = append(l.entries, at)
	l.totals = append(l.totals, l.last()+units)
}

func (l *Log) Charge(r *Rules, now, at int64, units float64) float64 {
	added := max(0, min(min(units, r.Capacity), r.Capacity-l.Used(r, now, at)))
	top := l.last()
	if top > r.rebaseAbove() {
		top = l.Used(r, now, at)
	}
	if top+added > top { // else it is too small for an entry
		l.Advance(r, now, at)
		l.Put(at, added)
	} else {
		l.Deny(r, now, at)
	}
	return added
}

// Refund takes the newest entries first. An entry that it takes in part keeps its time.
func (l *Log) Refund(_ *Rules, _, at int64, units float64) float64 {
	l.drop(l.Keep, at)
	back := min(units, l.last()-l.base)
	keep := max(l.base, l.last()-units)
	kept := 0
	if keep > l.base {
		kept = sort.SearchFloat64s(l.totals, keep) + 1
		l.totals[kept-1] = keep
	}
	l.entries, l.totals = l.entries[:kept], l.totals[:kept]
	return back
}

func (l *Log) Clone() State {
	return &Log{slices.Clone(l.entries), slices.Clone(l.totals), l.base, l.Keep}
}

// Seen returns a log as the statements do. It finds the entry that has to leave with Fit,
// which decides too: a computed sum such as last + need - room can round to the other
// side.
func (l *Log) Seen(r *Rules, _, at int64, room, need float64) View {
	_, base := l.left(r.Period, at)
	v := LogView{Units: l.last() - base}
	if n := len(l.entries); n > 0 {
		v.Newest = l.entries[n-1]
		if i := sort.Search(n, func(i int) bool { return Fit(room, l.last()-l.totals[i], need) >= 1 }); i < n {
			v.Frees = l.entries[i]
		}
	}
	return v
}

func (l *Log) IdleAt(*Rules) int64 {
	if n := len(l.entries); n > 0 {
		return l.entries[n-1] + l.Keep
	}
	return 0
}

// LogView is a log without its entries, as the statements return it.
type LogView struct {
	Units  float64
	Newest int64 // the newest entry, 0 without one
	Frees  int64 // the entry that has to leave before the rest of the request fits
}

func (v LogView) Level(*Rules, int64) float64 { return v.Units }

func (v LogView) Less(units float64) View {
	v.Units = max(0, v.Units-units)
	return v
}

// Part counts all units as those of the newest entry: the times of the others are not known.
func (v LogView) Part(r *Rules, part float64) State {
	l := &Log{Keep: r.Period}
	if v.Units > 0 {
		l.Put(v.Newest, part*v.Units)
	}
	return l
}

func (v LogView) FitsAt(r *Rules, at int64, room, need float64) int64 {
	switch {
	case Fit(room, 0, need) < 1:
		return Never
	case Fit(room, v.Units, need) >= 1:
		return at
	}
	return max(at, v.Frees+r.Period)
}

func (v LogView) EmptyAt(r *Rules, at int64) int64 {
	if v.Units == 0 {
		return at
	}
	return max(at, v.Newest+r.Period)
}

func (v LogView) Counted(at int64) Grant { return Grant{At: at} }

// Undo gives back what the entry of that time holds. To take from newer entries would
// free their room again when the old entry leaves.
func (l *Log) Undo(_ *Rules, _, at int64, g Grant, _ *Rules, units float64) float64 {
	// The next decision drops entries that have left.
	_, l.base = l.left(l.Keep, at)
	through, before := l.after(g.At), l.after(g.At-1)
	total := func(n int) float64 {
		if n == 0 {
			return l.base
		}
		return l.totals[n-1]
	}
	there, from := total(through), max(l.base, total(before))
	back := max(0, min(units, there-from))
	if back == 0 {
		return 0
	}
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
	if empty { // nothing is left of the entry
		l.entries = slices.Delete(l.entries, before, through)
		l.totals = slices.Delete(l.totals, before, through)
	}
	return back
}

func (l *Log) Counts(_ *Rules, at int64, g Grant, _ *Rules, _ float64) bool { return at < g.At+l.Keep }

// Settle gives back as Undo does.
func (l *Log) Settle(_ *Rules, now, at int64, h Reservation, actual float64, fresh bool) float64 {
	if fresh {
		l.Keep = h.Rules.Period
	}
	back := l.Undo(nil, now, at, Grant{At: h.CountedAt}, nil, h.Units-actual)
	if excess := max(0, actual-h.Units); l.last()+excess > l.last() { // else it is too small for an entry
		l.Put(at, excess)
	}
	return back
}
