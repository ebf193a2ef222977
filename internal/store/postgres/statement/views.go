package statement

import (
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// views makes the views of several rows in one allocation.
type views struct {
	buckets  []algorithm.Bucket
	windows  []algorithm.Window
	counters []algorithm.Counter
	logs     []algorithm.LogView
}

// together is the largest number of views in one allocation. A denial that is remembered
// keeps them all in memory.
const together = 8

// next returns a new T. left is the number of those still needed, with this one.
func next[T any](made *[]T, left int) *T {
	if len(*made) == 0 {
		*made = make([]T, min(left, together))
	}
	t := &(*made)[0]
	*made = (*made)[1:]
	return t
}

// viewer makes the view of a row. left is as in next.
type viewer func(v *views, left int, f *fields, q *store.Query) algorithm.View

func leakyView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	b := next(&v.buckets, left)
	*b = algorithm.Bucket{Units: f.level, LeakedAt: f.leakedAt}
	return b
}

func bucketView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	b := next(&v.buckets, left)
	*b = algorithm.Bucket{Units: f.level, LeakedAt: f.updatedAt}
	return b
}

func windowView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	w := next(&v.windows, left)
	*w = windowSeen(f.level, f.endsAt, f.updatedAt, f.clock)
	return w
}

// counterView moves the windows on: a denial leaves them as they were.
func counterView(v *views, left int, f *fields, q *store.Query) algorithm.View {
	c := next(&v.counters, left)
	*c = algorithm.Counter{Current: f.current, Previous: f.previous, Period: f.period, EndsAt: f.endsAt}
	c.Advance(&q.Rules, f.updatedAt, f.updatedAt)
	return c
}

func logView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	l := next(&v.logs, left)
	*l = algorithm.LogView{Units: f.level, Newest: f.newest, Frees: f.freesAt}
	return l
}

// windowSeen returns the window of a row as a statement's clock saw it: a row may keep the
// count of a window that is over. If now is nil, the clock is not known; it was at most
// updatedAt.
func windowSeen(count float64, endsAt, updatedAt int64, now *int64) algorithm.Window {
	if now != nil {
		updatedAt = *now
	}
	if updatedAt >= endsAt {
		count = 0
	}
	return algorithm.Window{Count: count, EndsAt: endsAt}
}

// outcome returns the outcome of a row after units were taken or given back. granted is
// negative if the key was blocked.
func (f *fields) outcome(view algorithm.View) store.Outcome {
	return store.Outcome{
		Decided: true, Granted: max(0, f.granted), Blocked: f.granted < 0,
		Now: f.updatedAt, UpdatedAt: f.updatedAt, BlockedUntil: f.blockedUntil, Ticket: f.ticket, View: view,
	}
}

// continued returns the outcome of a row that was only read, moved on to the moment of the
// query. A log is read at that moment: it has a view and no state.
func (f *fields) continued(q *store.Query, s algorithm.State) store.Outcome {
	o := store.Outcome{Decided: true, Now: f.now, UpdatedAt: max(f.now, f.updatedAt), BlockedUntil: f.blockedUntil}
	if s == nil {
		o.View = algorithm.LogView{Units: f.level, Newest: f.newest, Frees: f.freesAt}
	} else {
		o.View = s.Seen(&q.Rules, o.Now, o.UpdatedAt, q.Room, q.Rest(0))
	}
	return o
}

// The states of a row that was only read.

func leakyState(f *fields) algorithm.State {
	return &algorithm.Bucket{Units: f.level, LeakedAt: f.leakedAt}
}

func bucketState(f *fields) algorithm.State {
	return &algorithm.Bucket{Units: f.level, LeakedAt: f.updatedAt}
}

func windowState(f *fields) algorithm.State {
	return &algorithm.Window{Count: f.level, EndsAt: f.endsAt}
}

func counterState(f *fields) algorithm.State {
	return &algorithm.Counter{Current: f.current, Previous: f.previous, Period: f.period, EndsAt: f.endsAt}
}

func logState(*fields) algorithm.State { return nil }

// ended returns the row of a Settle of the reservation id.
func (f *fields) ended(id store.ReservationID) store.Ended {
	r := algorithm.Rules{Burst: f.burst, Capacity: f.capacity, Leak: f.leak, Tick: f.tick, Period: f.period}
	var now algorithm.State
	switch id.Algorithm.Family() {
	case algorithm.Windows:
		now = &algorithm.Window{Count: f.level, EndsAt: f.settledAt}
	case algorithm.Counters:
		now = &algorithm.Counter{Current: f.level, Previous: f.previous, EndsAt: f.settledAt, Period: f.windowOf}
	case algorithm.Logs:
		f.newest = f.settledAt
	default:
		now = &algorithm.Bucket{Units: f.level, LeakedAt: f.settledAt}
	}
	return store.Ended{
		Reservation: store.Reservation{
			ReservationID: id, Rules: r, Limit: f.limit, State: store.State(f.state),
			Reserved: f.reserved, Units: f.unitsBefore, ExpiresAt: f.expiresAt,
		},
		Now: f.now, Changed: f.changes, Freed: f.freed,
		Outcome: f.continued(&store.Query{Rules: r}, now),
	}
}
