package limiter

import (
	"context"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/turns"
)

// A Wait that is cancelled after others have queued behind it cannot give its place back:
// those others know their turns. Its turn stays unused, and the queue is as full as
// before. Clients that come and leave would fill it with such places. So this process
// keeps abandoned turns, and gives them to later Waits that the queue denies. Each turn is
// used once at most, so the queue keeps its pace.

// maxTurns is the largest number of abandoned turns that a Limiter keeps.
const maxTurns = 16_384

// queueKey identifies a queue by the caller's key.
type queueKey struct{ policy, key string }

func queueOf(in *Request) queueKey { return queueKey{in.Policy.Name, in.Key} }

// abandonedTurns are the turns of a Limiter's cancelled Waits.
type abandonedTurns = turns.Turns[queueKey]

// turnOf returns the turn that an outcome granted in a queue, if it was received at that
// time; no turn if it is too far in the future to keep.
func (e *engine) turnOf(q *store.Query, o *store.Outcome, received time.Time) turns.Turn {
	delay := result(q, verbWait, o, 0, e.source).Delay
	if delay > turns.Longest {
		return turns.Turn{}
	}
	return turns.Turn{From: received.Add(delay), Width: occupies(q, q.Units)}
}

// occupies returns the time that units take to leave the queue, rounded down; 0 if that
// is too long for a turn.
func occupies(q *store.Query, units float64) time.Duration {
	us := units / q.Leak
	if us >= float64(turns.Longest.Microseconds()) {
		return 0
	}
	return time.Duration(us * float64(time.Microsecond))
}

// reusable reports whether a request may use an abandoned turn, so that a remembered
// denial does not answer it.
func (e *engine) reusable(in *Request) bool {
	return in.Policy.Algorithm == LeakyBucketQueue && e.turns.Has(queueOf(in))
}

// abandoned returns an abandoned turn to a request that the queue denied for lack of
// room. It begins before the time by, unless that is zero, and where the queue would end.
func (e *engine) abandoned(in *Request, q *store.Query, o *store.Outcome, by time.Time) (turns.Turn, bool) {
	if o.Granted != 0 || o.Blocked || o.IsBlocked() || !q.Possible() {
		return turns.Turn{}, false
	}
	last := time.Now().Add(occupies(q, q.Capacity-q.Units))
	if !by.IsZero() && by.Before(last) {
		last = by
	}
	return e.turns.Take(queueOf(in), occupies(q, q.Units), last)
}

// abandon keeps a turn that its request does not use.
func (e *engine) abandon(in *Request, turn turns.Turn) {
	k := queueOf(in)
	k.key = strings.Clone(k.key) // it may share memory with a large text
	e.turns.Give(k, turn)
}

// grantTurn changes a denial to a grant of units at that time.
func grantTurn(r *Result, units float64, at time.Time) {
	r.Allowed, r.Granted, r.Delay = true, units, max(0, time.Until(at))
	r.RetryAfter, r.Reason = 0, ""
}

// reuse gives a denied DoWait an abandoned turn.
func (e *engine) reuse(ctx context.Context, c *call, r *Result) {
	by, _ := ctx.Deadline()
	var ok bool
	if c.turn, ok = e.abandoned(&c.request, &c.op.Query, &c.op.Outcome, by); ok {
		grantTurn(r, c.request.Cost, c.turn.From)
	}
}

// takeOrReuse takes all groups of a WaitAll. Queues without room give it abandoned turns.
func (e *engine) takeOrReuse(ctx context.Context, w *places, known func() bool) (allowed bool, err error) {
	allowed, err = e.takeAll(ctx, w.groups, known, true)
	if err == nil && !allowed {
		allowed, err = e.reuseAll(ctx, w)
	}
	return allowed, err
}

// reuseAll gives the queues that denied a WaitAll abandoned turns, if all others have room,
// and takes the others.
func (e *engine) reuseAll(ctx context.Context, w *places) (allowed bool, err error) {
	defer func() {
		if !allowed {
			w.returnTurns(e)
		}
	}()
	others := make([]*group, 0, len(w.groups))
	for _, g := range w.groups {
		switch {
		case !g.Possible() || !g.Fits() && g.source.Algorithm != LeakyBucketQueue:
			return false, nil
		case g.Fits():
			others = append(others, g)
		}
	}
	for _, g := range w.groups {
		if g.Fits() {
			continue
		}
		by := w.by
		if n := len(g.Needs); !by.IsZero() && n > 1 { // for the last of the group's requests
			by = by.Add(-occupies(&g.Query, g.Needs[n-2]))
		}
		var ok bool
		if g.reused, ok = e.abandoned(&w.requests[g.Index], &g.Query, &g.Outcome, by); !ok {
			return false, nil
		}
	}
	if len(others) == 0 {
		return true, nil
	}
	return e.takeAll(ctx, others, nil, true)
}

// returnTurns gives back the turns that reuseAll took.
func (w *places) returnTurns(e *engine) {
	for _, g := range w.groups {
		if !g.reused.IsZero() {
			e.abandon(&w.requests[g.Index], g.reused)
			g.reused = turns.Turn{}
		}
	}
}

// shareTurn returns the i-th request's answer if its group has an abandoned turn.
func (g *group) shareTurn(i int, in Request, source Source) Result {
	r := g.refused(i, in, source)
	grantTurn(&r, in.Cost, g.reused.From.Add(occupies(&g.Query, g.Needs[i]-in.Cost)))
	return r
}

// leave gives the place of a cancelled Wait back. If that is too late, its turn is
// abandoned. After an error it may have left.
func (e *engine) leave(ctx context.Context, request Request, q *store.Query, ticket int64, turn turns.Turn) {
	op := &store.Op{Kind: store.Leave, Query: *q, Ticket: ticket}
	if err := e.undo(ctx, request, op); err == nil && !op.Allowed {
		e.abandon(&request, turn)
	}
}
