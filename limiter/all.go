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

// joint is all requests of one AllowAll for one policy and key.
type joint struct {
	store.Joint
	source  Policy
	key     string     // the caller's
	indexes []int      // of its requests
	ahead   float64    // for a WaitAll: the most that may be in a queue before its last request
	at      attempt    // to remember its denial
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
	joints, err := e.joints(requests)
	if err != nil {
		return Results{DeniedBy: -1}, err
	}
	joints, shadows := apart(joints)
	if len(joints) > 0 && e.remembers(ctx) {
		if all, known := e.known(requests, joints); known {
			return all, nil
		}
		joints[0].Known = func() bool { return e.anyKnown(joints) }
	}
	allowed := false
	if w != nil {
		w.want(joints, requests)
	}
	switch {
	case len(joints) == 0:
		allowed = true
	case w == nil:
		allowed, err = e.takeAll(ctx, joints)
	default:
		allowed, err = e.takeOrReuse(ctx, w)
	}
	if w != nil {
		w.received = time.Now()
	}
	e.refusals.note(ctx, e.logger, err)
	failsClosed := func(in Request) bool { return in.Policy.OnError != FailOpen && !in.Policy.Shadow }
	switch {
	case err == nil:
		countRows(joints, rows)
		all = e.results(requests, joints, allowed)
		if !allowed {
			e.keep(requests, joints, all)
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
		q := store.Query{Units: in.Cost, Rules: algorithm.Rules{Burst: in.Policy.burst()}, Now: joints[0].Now} // an error had a joint
		all.PerRequest[i] = e.degrade(ctx, &q, &in.Policy, err)
	}
	return all, nil
}

// joints validates the requests and joins those of one policy and key. It returns them in
// lock order, the same for all callers.
func (e *engine) joints(requests []Request) ([]*joint, error) {
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
	joints := make([]*joint, 0, len(requests))
	known := make(map[row]*joint, len(requests))
	for i, in := range requests {
		c := call{verb: verbTake, request: in}
		if err := e.compile(&c); err != nil {
			return nil, fmt.Errorf("requests[%d]: %w", i, err)
		}
		if in.IdempotencyKey != "" {
			return nil, fmt.Errorf("%w: requests[%d] has an IdempotencyKey; only Do and Reserve take one", store.ErrUnsupported, i)
		}
		k := row{c.query.Algorithm, c.query.Policy, c.query.Key}
		j := known[k]
		switch {
		case j == nil:
			j = &joint{Joint: store.Joint{Query: c.query, Index: i}, source: in.Policy, key: in.Key, ahead: math.Inf(1)}
			j.Shared = false
			known[k] = j
			joints = append(joints, j)
		case j.source != in.Policy:
			return nil, fmt.Errorf("%w: requests[%d] and requests[%d] are for the same key under two policies %s that are not equal",
				store.ErrInvalid, j.Index, i, store.Quote(in.Policy.Name))
		default:
			sum := j.Units + in.Cost
			j.Units, j.Cost, j.Unit = sum, sum, sum
		}
		j.indexes, j.Needs = append(j.indexes, i), append(j.Needs, j.Units)
	}
	slices.SortFunc(joints, func(a, b *joint) int {
		return cmp.Or(cmp.Compare(a.Algorithm.Index(), b.Algorithm.Index()),
			strings.Compare(a.Policy, b.Policy), strings.Compare(a.Key, b.Key))
	})
	now, commit := joints[0].Now, joints[0].Commit
	for _, j := range joints {
		if j.Commit == store.Durable {
			commit = store.Durable
		}
	}
	for _, j := range joints { // one transaction, and one reading of Config.Now
		j.Now, j.Commit = now, commit
	}
	return joints, nil
}

// takeAll sends the joints to the store. A single request is a plain Take.
func (e *engine) takeAll(ctx context.Context, joints []*joint) (allowed bool, err error) {
	possible := true
	all := make([]*store.Joint, len(joints))
	for i, j := range joints {
		possible = possible && j.Possible()
		all[i] = &j.Joint
	}
	if j := all[0]; possible && len(all) == 1 && len(j.Needs) == 1 {
		o, err := e.store.Take(ctx, &j.Query)
		if err != nil { // a statement in flight may still need j
			return false, err
		}
		j.Outcome, j.Views = o, []algorithm.View{o.View}
		return j.Fits(), nil
	}
	return e.store.TakeAll(ctx, all, possible)
}

// results returns the answer to each request.
func (e *engine) results(requests []Request, joints []*joint, allowed bool) Results {
	all := Results{Allowed: allowed, DeniedBy: -1, PerRequest: make([]Result, len(requests))}
	for _, j := range joints {
		for i, index := range j.indexes {
			switch {
			case !j.reused.IsZero():
				all.PerRequest[index] = j.shareTurn(i, requests[index], e.source)
			case allowed:
				all.PerRequest[index] = j.share(i, requests[index], e.source)
			default:
				all.PerRequest[index] = j.refused(i, requests[index], e.source)
			}
		}
		if !allowed && j.Outcome.IsBlocked() { // the block may be newer than the remembered denial
			e.denied.forget(&j.source, requests[j.Index].Key)
		}
	}
	all.skip(requests, joints)
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
func (j *joint) share(i int, in Request, source Source) Result {
	q, o := j.Query, j.Outcome
	o.View = o.View.Less(q.Units - j.Needs[i])
	q.Units, q.Cost, q.Unit = in.Cost, in.Cost, in.Cost
	return result(&q, verbTake, &o, in.Policy.Limit, source)
}

// refused returns the i-th request's answer after the whole was denied: whether it would
// have fitted after those before it, and its RetryAfter.
func (j *joint) refused(i int, in Request, source Source) Result {
	q, o, need := j.Query, j.Outcome, j.Needs[i]
	o.View = j.Views[i]
	q.Room = min(q.Capacity, j.ahead+in.Cost)
	if o.Granted == 0 && !o.Blocked && algorithm.Fit(q.Room, o.View.Level(&q.Rules, o.UpdatedAt), need) >= 1 {
		o.Granted = 1 // this request alone
	}
	q.Units, q.Cost, q.Unit = need, need, need
	r := result(&q, verbTake, &o, in.Policy.Limit, source)
	r.Granted, r.Delay, r.grant = 0, 0, algorithm.Grant{}
	return r
}

// places are the joints of a WaitAll.
type places struct {
	within   time.Duration // how long it can wait
	by       time.Time     // its deadline; zero: none
	received time.Time     // when it got its places
	delay    time.Duration // until the turn of all
	requests []Request
	joints   []*joint
}

// want notes the joints. In a queue it limits the room to what has its turn in time.
func (w *places) want(joints []*joint, requests []Request) {
	w.requests, w.joints = requests, joints
	for _, j := range joints {
		if j.source.Algorithm == LeakyBucketQueue {
			j.ahead = float64(w.within.Microseconds()) * j.Leak
			j.Room = min(j.Capacity, j.ahead+requests[j.indexes[len(j.indexes)-1]].Cost)
		}
	}
}

// leaveAll tries to give back what was granted to a WaitAll.
func (e *engine) leaveAll(ctx context.Context, w *places) {
	e.leaveJoints(ctx, slices.DeleteFunc(slices.Clone(w.joints), func(j *joint) bool { return !j.reused.IsZero() }), w.received)
	w.returnTurns(e)
}

// leaveJoints tries to give back what was granted to joints, which was received at that
// time.
func (e *engine) leaveJoints(ctx context.Context, joints []*joint, received time.Time) {
	for _, j := range joints {
		request := j.source.Request(j.key, j.Units)
		if request.Policy.Algorithm == LeakyBucketQueue {
			e.leave(ctx, request, &j.Query, j.Outcome.Ticket, e.turnOf(&j.Query, &j.Outcome, received))
			continue
		}
		q, g := j.Apart(), j.Outcome.View.Counted(j.Outcome.UpdatedAt)
		q.Cost, q.Count = 1, q.Units
		e.undo(ctx, request, q, func(ctx context.Context) error {
			_, err := e.store.Undo(ctx, q, g)
			return err
		})
	}
}
