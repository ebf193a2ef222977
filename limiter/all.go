package limiter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/turns"
)

// maxRequests is the largest number of requests of one AllowAll.
const maxRequests = 1000

// AllowAll makes several requests at once, of any policies and keys: all are granted or
// none, and a denial consumes nothing. It takes from 1 to 1,000 requests. Their order
// matters only for Results. AllowAlls never deadlock each other.
//
//   - Requests for one policy and key are decided on the sum of their costs. Each has its
//     own Result, as if they had come one after the other. Those of a shadow policy do come
//     one after the other.
//   - A sum above the burst is denied with RetryAfter Never, and nothing is written.
//   - One name, algorithm and key under two different Policy values is an ErrInvalid.
//   - Errors name the request by its index.
//   - A denial starts the block of those policies that denied, if Policy.BlockFor is set.
//   - The whole is Relaxed if all policies are, else Durable; FailOpen if all policies
//     are, else FailClosed.
//   - The rows of all keys are locked for two round trips to the database. If all keys had
//     much room at this Limiter's last AllowAll, it is one, and they are locked only while
//     the database decides.
//   - A remembered denial of one of its requests denies the whole: the Source of the others
//     is SourceSkipped.
//   - A request of a shadow policy never denies the others. If the others are granted, it is
//     decided by itself, by a statement after theirs, and counted if it fits. If they are
//     denied, it is not decided: its Source is SourceSkipped. In a transaction too the keys
//     of shadow policies are locked after all others, both in one order.
//   - Config.Observe is called for each request.
func (e *engine) AllowAll(ctx context.Context, requests ...Request) (Results, error) {
	return e.all(ctx, requests, nil)
}

// group is all requests of one AllowAll for one policy and key.
type group struct {
	store.Group
	source  Policy
	key     string     // the caller's
	indexes []int      // of its requests
	ahead   float64    // for a WaitAll: the most that may be in a queue before its last request
	at      attempt    // to remember its denial
	rows    int        // of the statement that decided it, if that shared them
	reused  turns.Turn // for a WaitAll: abandoned by another and taken; or none
}

// all decides an AllowAll, or with w a WaitAll.
func (e *engine) all(ctx context.Context, given []Request, w *places) (all Results, err error) {
	began := e.begin()
	requests, free := e.overrideAll(given)
	var rows []int
	if e.observe != nil {
		rows = make([]int, len(requests))
	}
	for {
		if all, err = e.decideLimited(ctx, requests, free, w, rows); err != store.ErrKnown {
			break
		}
	}
	if err == nil {
		for i := range requests {
			all.PerRequest[i].Shadow = requests[i].Policy.Shadow
		}
	}
	if e.denialLog != nil && err == nil {
		for i := range requests {
			e.denialLog.add(e.logSecret, verbTake, &requests[i], &all.PerRequest[i])
		}
	}
	if e.observe != nil {
		v := VerbAllowAll
		if w != nil {
			v = VerbWaitAll
		}
		for i := range requests {
			var r Result
			if err == nil {
				r = all.PerRequest[i]
			}
			e.seen(ctx, v, &requests[i], &r, err, began, e.rows(&r, err, &rows[i]))
		}
	}
	return all, err
}

// decideAll is all without Observe. It returns ErrKnown if a denial came to be known
// while the requests waited. It sets rows, unless nil, to Observation.Rows.
func (e *engine) decideAll(ctx context.Context, requests []Request, w *places, rows []int) (all Results, err error) {
	if e.closed.Load() {
		return Results{DeniedBy: -1}, store.ErrClosed
	}
	groups, err := e.groups(requests)
	if err != nil {
		return Results{DeniedBy: -1}, err
	}
	groups, shadows := apart(groups)
	var known func() bool
	if len(groups) > 0 && e.remembers(ctx) {
		if all, known := e.known(requests, groups); known {
			return all, nil
		}
		known = func() bool { return e.anyKnown(groups) }
	}
	allowed := false
	if w != nil {
		w.want(groups, requests)
	}
	switch {
	case len(groups) == 0:
		allowed = true
	case w == nil:
		allowed, err = e.takeAll(ctx, groups, known, false)
	default:
		allowed, err = e.takeOrReuse(ctx, w, known)
	}
	if w != nil {
		w.received = time.Now()
	}
	e.refusals.note(ctx, e.logger, err)
	failsClosed := func(in Request) bool { return in.Policy.OnError != FailOpen && !in.Policy.Shadow }
	switch {
	case err == nil:
		countRows(groups, rows)
		all = e.results(requests, groups, allowed)
		if !allowed {
			e.keep(requests, groups, all)
			return all, nil
		}
		if w != nil {
			for _, r := range all.PerRequest { // those of shadow policies are not decided yet
				w.delay = max(w.delay, r.Delay)
			}
		}
		if err := e.decideShadows(ctx, requests, shadows, w, &all, rows); err != nil {
			return Results{DeniedBy: -1}, err
		}
		return all, nil
	case err == store.ErrKnown, !e.failsOpen(ctx, err) || slices.ContainsFunc(requests, failsClosed):
		return Results{DeniedBy: -1}, err
	}
	all = Results{Allowed: true, DeniedBy: -1, PerRequest: make([]Result, len(requests))}
	for i, in := range requests {
		q := store.Query{Units: in.Cost, Rules: algorithm.Rules{Burst: in.Policy.burst()}, Now: groups[0].Now} // an error had a group
		all.PerRequest[i] = e.degrade(ctx, &q, &in.Policy, err)
	}
	return all, nil
}

// groups validates the requests and joins those of one policy and key. It returns them in
// lock order, the same for all callers.
func (e *engine) groups(requests []Request) ([]*group, error) {
	switch {
	case len(requests) == 0:
		return nil, store.Invalid("requests", "none", "pass at least one")
	case len(requests) > maxRequests:
		return nil, store.Invalid("requests", strconv.Itoa(len(requests)), fmt.Sprintf("must be at most %d", maxRequests))
	}
	type row struct {
		algorithm   algorithm.Name
		policy, key string
	}
	groups := make([]*group, 0, len(requests))
	known := make(map[row]*group, len(requests))
	for i, in := range requests {
		c := call{verb: verbTake, request: in}
		if err := e.compile(&c); err != nil {
			return nil, fmt.Errorf("requests[%d]: %w", i, err)
		}
		if in.IdempotencyKey != "" {
			return nil, fmt.Errorf("%w: requests[%d] has an IdempotencyKey; only Do and Reserve take one", store.ErrUnsupported, i)
		}
		k := row{c.op.Algorithm, c.op.Policy, c.op.Key}
		g := known[k]
		switch {
		case g == nil:
			g = &group{Group: store.Group{Query: c.op.Query, Index: i}, source: in.Policy, key: in.Key, ahead: math.Inf(1)}
			known[k] = g
			groups = append(groups, g)
		case g.source != in.Policy:
			return nil, fmt.Errorf("%w: requests[%d] and requests[%d] are for the same key under two policies %s that are not equal",
				store.ErrInvalid, g.Index, i, store.Quote(in.Policy.Name))
		default:
			sum := g.Units + in.Cost
			g.Units, g.Cost, g.Unit = sum, sum, sum
		}
		g.indexes, g.Needs = append(g.indexes, i), append(g.Needs, g.Units)
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.Algorithm.Index(), b.Algorithm.Index()),
			strings.Compare(a.Policy, b.Policy), strings.Compare(a.Key, b.Key))
	})
	now, commit := groups[0].Now, groups[0].Commit
	for _, g := range groups {
		if g.Commit == store.Durable {
			commit = store.Durable
		}
	}
	for _, g := range groups { // one transaction, and one reading of Config.Now
		g.Now, g.Commit = now, commit
	}
	return groups, nil
}

// takeAll sends the groups to the store. A single request is a plain Take. known is
// store.Op's. If leaves, what is granted after the caller has left is given back.
func (e *engine) takeAll(ctx context.Context, groups []*group, known func() bool, leaves bool) (allowed bool, err error) {
	op := &store.Op{Kind: store.TakeAll, Groups: make([]*store.Group, len(groups)), Known: known}
	for i, g := range groups {
		op.Groups[i] = &g.Group
		if !g.Possible() {
			op.Kind = store.GetAll
		}
	}
	first := *groups[0]
	if op.Kind == store.TakeAll && len(groups) == 1 && len(first.Needs) == 1 {
		op.Kind, op.Query = store.Take, first.Query
	}
	if leaves {
		e.undoLate(op, func() {
			granted := groups
			if op.Kind == store.Take {
				first.Outcome, granted = op.Outcome, []*group{&first}
			}
			e.leaveGroups(ctx, granted, time.Now())
		})
	}
	if err := e.store.Do(ctx, op); err != nil { // a statement in flight may still need them
		return false, err
	}
	groups[0].rows = op.Rows
	if op.Kind == store.Take {
		groups[0].Outcome, groups[0].Views = op.Outcome, []algorithm.View{op.Outcome.View}
		return groups[0].Fits(), nil
	}
	return op.Allowed, nil
}

// results returns the answer to each request.
func (e *engine) results(requests []Request, groups []*group, allowed bool) Results {
	all := Results{Allowed: allowed, DeniedBy: -1, PerRequest: make([]Result, len(requests))}
	for _, g := range groups {
		for i, index := range g.indexes {
			switch {
			case !g.reused.IsZero():
				all.PerRequest[index] = g.shareTurn(i, requests[index], e.source)
			case allowed:
				all.PerRequest[index] = g.share(i, requests[index], e.source)
			default:
				all.PerRequest[index] = g.refused(i, requests[index], e.source)
			}
		}
		if !allowed && g.Outcome.IsBlocked() { // the block may be newer than the remembered denial
			e.denied.forget(&g.source, requests[g.Index].Key)
		}
	}
	all.skip(requests, groups)
	all.blame()
	return all
}

// blame sets DeniedBy.
func (all *Results) blame() {
	for i, r := range all.PerRequest {
		if !r.Allowed && r.Source != SourceSkipped && (all.DeniedBy < 0 || r.RetryAfter > all.PerRequest[all.DeniedBy].RetryAfter) {
			all.DeniedBy = i
		}
	}
}

// share returns the i-th request's answer after all were granted, as of before the
// requests after it.
func (g *group) share(i int, in Request, source Source) Result {
	q, o := g.Query, g.Outcome
	o.View = o.View.Less(q.Units - g.Needs[i])
	q.Units, q.Cost, q.Unit = in.Cost, in.Cost, in.Cost
	return result(&q, verbTake, &o, in.Policy.Limit, source)
}

// refused returns the i-th request's answer after the whole was denied: whether it would
// have fitted after those before it, and its RetryAfter.
func (g *group) refused(i int, in Request, source Source) Result {
	q, o, need := g.Query, g.Outcome, g.Needs[i]
	o.View = g.Views[i]
	q.Room = min(q.Capacity, g.ahead+in.Cost)
	if o.Granted == 0 && !o.Blocked && algorithm.Fit(q.Room, o.View.Level(&q.Rules, o.UpdatedAt), need) >= 1 {
		o.Granted = 1 // this request alone
	}
	q.Units, q.Cost, q.Unit = need, need, need
	r := result(&q, verbTake, &o, in.Policy.Limit, source)
	r.Granted, r.Delay, r.grant = 0, 0, algorithm.Grant{}
	return r
}

// places are the groups of a WaitAll.
type places struct {
	within   time.Duration // how long it can wait
	by       time.Time     // its deadline; zero: none
	received time.Time     // when it got its places
	delay    time.Duration // until the turn of all
	requests []Request
	groups   []*group
}

// want notes the groups. In a queue it limits the room to what has its turn in time.
func (w *places) want(groups []*group, requests []Request) {
	w.requests, w.groups = requests, groups
	for _, g := range groups {
		if g.source.Algorithm == LeakyBucketQueue {
			g.ahead = float64(w.within.Microseconds()) * g.Leak
			g.Room = min(g.Capacity, g.ahead+requests[g.indexes[len(g.indexes)-1]].Cost)
		}
	}
}

// leaveAll tries to give back what was granted to a WaitAll.
func (e *engine) leaveAll(ctx context.Context, w *places) {
	e.leaveGroups(ctx, slices.DeleteFunc(slices.Clone(w.groups), func(g *group) bool { return !g.reused.IsZero() }), w.received)
	w.returnTurns(e)
}

// leaveGroups tries to give back what was granted to groups, which was received at that
// time.
func (e *engine) leaveGroups(ctx context.Context, groups []*group, received time.Time) {
	for _, g := range groups {
		request := g.source.Request(g.key, g.Units)
		if request.Policy.Algorithm == LeakyBucketQueue {
			e.leave(ctx, request, &g.Query, g.Outcome.Ticket, e.turnOf(&g.Query, &g.Outcome, received))
			continue
		}
		op := &store.Op{Kind: store.Undo, Query: g.Query, Grant: g.Outcome.View.Counted(g.Outcome.UpdatedAt)}
		op.Cost, op.Count = 1, op.Units
		_ = e.undo(ctx, request, op)
	}
}
