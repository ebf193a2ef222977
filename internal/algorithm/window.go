package algorithm

import (
	"sort"
)

// Window counts in one window and keeps its end. After the end it keeps the count too,
// until another window begins: a reading of the clock from before the end still finds it.
type Window struct {
	Count  float64
	EndsAt int64
}

func (w *Window) Level(*Rules, int64) float64 { return w.Count }

func (w *Window) Used(_ *Rules, now, _ int64) float64 {
	if now >= w.EndsAt {
		return 0
	}
	return w.Count
}

func (w *Window) Advance(r *Rules, now, at int64) {
	if now < w.EndsAt {
		return
	}
	w.Count = 0
	switch {
	case r.Calendar != nil:
		w.EndsAt = r.Calendar.endOf(now)
	case r.Aligned:
		w.EndsAt = (now/r.Period + 1) * r.Period
	default:
		w.EndsAt = at + r.Period
	}
}

// Deny begins no window.
func (w *Window) Deny(*Rules, int64, int64) {}

func (w *Window) Put(_ int64, units float64) { w.Count += units }

func (w *Window) Charge(r *Rules, now, at int64, units float64) float64 {
	w.Advance(r, now, at)
	units = min(units, r.Capacity)
	added := max(0, min(units, r.Capacity-w.Count))
	w.Count = max(w.Count, min(r.Capacity, w.Count+units))
	return added
}

func (w *Window) Clone() State { c := *w; return &c }

func (w *Window) Seen(r *Rules, now, at int64, _, _ float64) View {
	return &Window{Count: w.Used(r, now, at), EndsAt: w.EndsAt}
}

func (w *Window) Counted(int64) Grant { return Grant{EndsAt: w.EndsAt} }

func (w *Window) IdleAt(*Rules) int64 { return w.EndsAt }

func (w *Window) Less(units float64) View {
	c := *w
	c.Count = max(0, c.Count-units)
	return &c
}

func (w *Window) Part(_ *Rules, part float64) State {
	c := *w
	c.Count *= part
	return &c
}

func (w *Window) Refund(r *Rules, now, at int64, units float64) float64 {
	back := min(units, w.Used(r, now, at))
	w.Count -= back
	return back
}

// Undo gives back only to the window that counted the units.
func (w *Window) Undo(r *Rules, now, at int64, g Grant, _ *Rules, units float64) float64 {
	if w.EndsAt != g.EndsAt {
		units = 0
	}
	return w.Refund(r, now, at, units)
}

func (w *Window) Counts(_ *Rules, at int64, g Grant, _ *Rules, _ float64) bool { return at < g.EndsAt }

// Settle takes from the reservation's window. It adds what was spent beyond the
// reservation to the current window, which is another one after a Reset.
func (w *Window) Settle(r *Rules, now, at int64, h Reservation, actual float64, fresh bool) float64 {
	if fresh || now >= w.EndsAt { // after a block or a Reset
		w.Count, w.EndsAt = 0, h.EndsAt
	}
	back := 0.0
	if w.EndsAt == h.EndsAt {
		back = max(0, h.Units-actual)
	}
	gone := w.Refund(r, now, at, back)
	w.Count += max(0, actual-h.Units)
	return gone
}

func (w *Window) FitsAt(_ *Rules, at int64, room, need float64) int64 {
	switch {
	case Fit(room, 0, need) < 1:
		return Never
	case at >= w.EndsAt || Fit(room, w.Count, need) >= 1:
		return at
	}
	return w.EndsAt
}

func (w *Window) EmptyAt(_ *Rules, at int64) int64 {
	if w.Count == 0 {
		return at
	}
	return max(at, w.EndsAt)
}

// Counter counts in the window that ends at EndsAt and keeps the count of the previous
// window. The windows have their own Period: a window ends as it was begun, whatever the
// Period of later requests.
type Counter struct {
	Current, Previous float64
	EndsAt            int64
	Period            int64
}

// Level weighs the previous window by the part that the sliding window covers.
func (w *Counter) Level(_ *Rules, at int64) float64 {
	return weigh(w.Previous, min(w.Period, w.EndsAt-at), w.Period) + w.Current
}

// weigh returns the part of units that counts if covered microseconds of their window do.
func weigh(units float64, covered, period int64) float64 {
	return float64(float64(units*float64(covered)) / float64(period))
}

func (w *Counter) Used(r *Rules, now, at int64) float64 {
	c := *w
	c.Advance(r, now, at)
	return c.Level(r, at)
}

func (w *Counter) Advance(r *Rules, _, at int64) {
	if at < w.EndsAt {
		return
	}
	current := w.Current
	w.Current, w.Previous = 0, 0
	switch {
	case r.Period != w.Period: // the next window starts with the weight of the last one
		w.Current = weigh(current, max(0, w.EndsAt+w.Period-at), w.Period)
	case at < w.EndsAt+w.Period:
		w.Previous = current
	}
	w.Period = r.Period
	w.EndsAt = (at/r.Period + 1) * r.Period
}

// Deny leaves the windows: another period would end them sooner.
func (w *Counter) Deny(*Rules, int64, int64) {}

func (w *Counter) Put(_ int64, units float64) { w.Current += units }

func (w *Counter) Charge(r *Rules, now, at int64, units float64) float64 {
	added := max(0, min(min(units, r.Capacity), r.Capacity-w.Used(r, now, at)))
	if added > 0 {
		w.Advance(r, now, at)
		w.Current += added
	}
	return added
}

func (w *Counter) Clone() State { c := *w; return &c }

func (w *Counter) Seen(r *Rules, now, at int64, _, _ float64) View {
	c := *w
	c.Advance(r, now, at)
	return &c
}

func (w *Counter) Counted(int64) Grant { return Grant{EndsAt: w.EndsAt} }

func (w *Counter) IdleAt(*Rules) int64 { return w.EmptyAt(nil, 0) }

func (w *Counter) Less(units float64) View {
	c := *w
	c.Current = max(0, c.Current-units)
	return &c
}

func (w *Counter) Part(_ *Rules, part float64) State {
	c := *w
	c.Current, c.Previous = part*c.Current, part*c.Previous
	return &c
}

// own returns rules with the windows' Period.
func (w *Counter) own() *Rules { return &Rules{Period: w.Period} }

// begun reports whether the counter has had a window. One that only a block has made, and
// denials while it lasted, has no Period to begin a window with.
func (w *Counter) begun() bool { return w.EndsAt != 0 }

// Refund takes from the current window first, then from the previous one.
func (w *Counter) Refund(_ *Rules, now, at int64, units float64) float64 {
	if !w.begun() {
		return 0
	}
	w.Advance(w.own(), now, at)
	back := min(units, w.Current+w.Previous)
	w.Previous = max(0, w.Previous-max(0, units-w.Current))
	w.Current = max(0, w.Current-units)
	return back
}

// Undo gives back to the window that counted the units, if it is the current one or, with
// the same Period, the previous one.
func (w *Counter) Undo(_ *Rules, now, at int64, g Grant, _ *Rules, units float64) float64 {
	if !w.begun() {
		return 0
	}
	return w.undo(now, at, g, units)
}

func (w *Counter) undo(now, at int64, g Grant, units float64) (gone float64) {
	w.Advance(w.own(), now, at)
	switch w.EndsAt {
	case g.EndsAt:
		gone = min(w.Current, units)
		w.Current = max(0, w.Current-units)
	case g.EndsAt + w.Period:
		gone = min(w.Previous, units)
		w.Previous = max(0, w.Previous-units)
	}
	return gone
}

func (w *Counter) Counts(_ *Rules, at int64, g Grant, _ *Rules, _ float64) bool {
	return at < g.EndsAt+w.Period
}

// Settle gives back as Undo does.
func (w *Counter) Settle(_ *Rules, now, at int64, h Reservation, actual float64, _ bool) float64 {
	if !w.begun() {
		w.Period = h.Rules.Period
	}
	gone := w.undo(now, at, Grant{EndsAt: h.EndsAt}, max(0, h.Units-actual))
	w.Current += max(0, actual-h.Units)
	return gone
}

func (w *Counter) FitsAt(r *Rules, at int64, room, need float64) int64 {
	if Fit(room, 0, need) < 1 {
		return Never
	}
	if left := w.EndsAt - at; left > 0 {
		wait := sort.Search(int(left), func(us int) bool {
			return Fit(room, w.Level(r, at+int64(us)), need) >= 1
		})
		if int64(wait) < left {
			return at + int64(wait)
		}
	}
	next := Counter{Previous: w.Current, EndsAt: w.EndsAt + w.Period, Period: w.Period}
	return w.EndsAt + int64(sort.Search(int(w.Period), func(us int) bool {
		return Fit(room, next.Level(r, w.EndsAt+int64(us)), need) >= 1
	}))
}

func (w *Counter) EmptyAt(_ *Rules, at int64) int64 {
	switch {
	case w.Current > 0:
		return w.EndsAt + w.Period
	case w.Previous > 0:
		return max(at, w.EndsAt)
	}
	return at
}
