package limiter

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/places"
	"github.com/pglimit/pglimit/internal/store"
)

// A place is the time in which the units of a request drain from a queue. A Wait that is
// cancelled after others have queued behind it cannot give its units back, because the
// others sleep until places that they know. Its own place stays unused, and the queue stays
// as full. Clients that cancel would fill the queue with unused places. So a Limiter keeps
// them, and grants them to later Waits that the queue denies. Each place is used at most
// once, so the queue keeps its pace.

// maxPlaces is the largest number of unused places that a Limiter keeps.
const maxPlaces = 16_384

// queueKey identifies a queue by the caller's key.
type queueKey struct{ policy, key string }

// waitAll decides requests of a Limiter, and sleeps until the turn of all.
func (e *engine) waitAll(ctx context.Context, v *verb, requests []Request) (Results, error) {
	s := &set{verb: v, requests: requests, within: math.MaxInt64}
	if deadline, ok := ctx.Deadline(); ok {
		s.by, s.within = deadline, max(0, time.Until(deadline))
	}
	all, err := e.decideAll(ctx, s)
	if err != nil || sleep(ctx, s.delay) {
		return all, err
	}
	e.withdrawals.add() // Close waits for this one
	defer e.withdrawals.done()
	e.withdraw(ctx, s.groups, s.received)
	return Results{DeniedBy: -1}, store.EndedContext(ctx)
}

// sleep reports whether the delay ended before ctx.
func sleep(ctx context.Context, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// withdraw gives back what was granted to groups, at received. If others have queued behind a
// group, its units cannot go back: its place is kept for a later request.
func (e *engine) withdraw(ctx context.Context, groups []*group, received time.Time) {
	for _, g := range groups {
		switch {
		case !g.place.IsZero():
			e.keepPlace(g, g.place)
		case g.queue():
			op := &store.Op{Kind: store.Leave, Query: g.Query, Ticket: g.Outcome.Ticket}
			if err := e.undo(ctx, new(g.request()), op); err == nil && !op.Allowed { // after an error the units may have gone back
				e.keepPlace(g, g.placeAt(received, e.source))
			}
		default:
			op := &store.Op{Kind: store.Undo, Query: g.Query, Grant: g.Outcome.View.Counted(g.Outcome.UpdatedAt)}
			op.Cost, op.Count = 1, op.Units
			_ = e.undo(ctx, new(g.request()), op)
		}
	}
}

// longestUndo bounds what no caller waits for, without Config.Timeout.
const longestUndo = time.Second

// undo carries out op, which gives units of a request back. The end of ctx does not end it; a
// timeout does.
func (e *engine) undo(ctx context.Context, in *Request, op *store.Op) error {
	op.Now = e.now()
	err := e.sendBounded(context.WithoutCancel(ctx), op)
	e.denied.forget(rowOf(in))
	if err != nil {
		e.logger.WarnContext(ctx, "pglimit: units could not be given back", "policy", in.Policy.Name, "error", err)
	}
	return err
}

// sendBounded carries out op, which no caller's context ends.
func (e *engine) sendBounded(ctx context.Context, op *store.Op) error {
	if e.timeout <= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longestUndo)
		defer cancel()
	}
	return e.store.Do(ctx, op)
}

// placeAt returns the place that was granted to g in a queue. received is when the grant was
// known. A place that is too far in the future to keep is none.
func (g *group) placeAt(received time.Time, source Source) places.Place {
	delay := result(&g.Query, verbTake, &g.Outcome, 0, source).Delay
	if delay > places.Longest {
		return places.Place{}
	}
	return places.Place{From: received.Add(delay), Width: occupies(&g.Query, g.Units)}
}

// occupies returns the time in which units drain from q's queue, rounded down; 0 if that is
// too long for a place.
func occupies(q *store.Query, units float64) time.Duration {
	us := units / q.Leak
	if us >= float64(places.Longest.Microseconds()) {
		return 0
	}
	return time.Duration(us * float64(time.Microsecond))
}

// keepPlace keeps a place that its group does not use.
func (e *engine) keepPlace(g *group, place places.Place) {
	e.places.Put(queueKey{g.Policy, strings.Clone(g.key)}, place) // the key may share memory with a large text
}

// reusable reports whether a group may use an unused place, so that a remembered denial does
// not answer it.
func (e *engine) reusable(s *set, g *group) bool {
	return s.verb.waits && g.queue() && e.places.Has(queueKey{g.Policy, g.key})
}

// reuseAll gives unused places to the groups of s whose queues are full, if all other groups
// fit, and takes the others.
func (e *engine) reuseAll(ctx context.Context, s *set) (allowed bool, err error) {
	defer func() {
		for _, g := range s.groups {
			if !allowed && !g.place.IsZero() {
				e.keepPlace(g, g.place)
				g.place = places.Place{}
			}
		}
	}()
	others := make([]*group, 0, len(s.groups))
	for _, g := range s.groups {
		switch {
		case !g.Possible() || !g.Fits() && !g.queue():
			return false, nil
		case g.Fits():
			others = append(others, g)
		}
	}
	for _, g := range s.groups {
		if !g.Fits() && !e.reuse(s, g) {
			return false, nil
		}
	}
	if len(others) == 0 {
		return true, nil
	}
	return e.takeAll(ctx, s, others, nil)
}

// reuse gives g, whose queue is full, an unused place, and reports whether there was one. The
// place begins before the deadline of s, and no later than a place at the end of the queue.
func (e *engine) reuse(s *set, g *group) (ok bool) {
	if g.Outcome.Blocked || g.Outcome.IsBlocked() {
		return false
	}
	last := time.Now().Add(occupies(&g.Query, g.Ceiling()-g.Units))
	if !s.by.IsZero() {
		by := s.by
		if n := len(g.Needs); n > 1 { // for the last of the group's requests
			by = by.Add(-occupies(&g.Query, g.Needs[n-2]))
		}
		if by.Before(last) {
			last = by
		}
	}
	g.place, ok = e.places.Take(queueKey{g.Policy, g.key}, occupies(&g.Query, g.Units), last)
	return ok
}

// usePlace changes a denial to a grant of units that drain at a time.
func (r *Result) usePlace(units float64, at time.Time) {
	r.Allowed, r.Granted, r.Delay = true, units, max(0, time.Until(at))
	r.RetryAfter, r.Reason = 0, ""
}

// inProgress counts what is in progress.
type inProgress struct {
	mu    sync.Mutex
	ended sync.Cond
	n     int
}

func newInProgress() *inProgress {
	t := new(inProgress)
	t.ended.L = &t.mu
	return t
}

func (t *inProgress) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *inProgress) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		t.ended.Broadcast()
	}
}

// zero reports whether nothing is in progress.
func (t *inProgress) zero() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n == 0
}

// awaitZero waits until nothing is in progress.
func (t *inProgress) awaitZero() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.n > 0 {
		t.ended.Wait()
	}
}
