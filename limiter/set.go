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
	"github.com/pglimit/pglimit/internal/places"
	"github.com/pglimit/pglimit/internal/store"
)

// set is the requests of an AllowAll, WaitAll or DoWait, which are decided together.
type set struct {
	verb     *verb
	requests []Request // with their overrides
	ruled    []Ruling  // by request; nil: overrides decide about none
	groups   []*group  // of enforced policies, in lock order; after a WaitAll, also those of shadow policies
	shadows  []*group
	full     bool          // keys have no row and get none
	alone    bool          // a request of a shadow policy, as if that were enforced
	rows     int           // store.Op's, of the statement that decided groups
	ttl      time.Duration // of a ReserveAll

	// Of a set that waits.
	within   time.Duration // the time until its deadline
	by       time.Time     // its deadline; zero: none
	received time.Time     // when it was granted
	delay    time.Duration // until the turn of all
}

// group is all requests of a set for one policy and key.
type group struct {
	store.Group
	source  Policy
	key     string       // the caller's
	indexes []int        // of its requests
	ahead   float64      // of a queue: the most units that may be before its last request
	at      attempt      // to remember its denial
	place   places.Place // given up by another request, and used by this; or none
	one     struct {     // the arrays of a single request, so that they are not allocated apart
		index [1]int
		need  [1]float64
		view  [1]algorithm.View
	}
}

// request returns the group as one request.
func (g *group) request() Request {
	return Request{Policy: g.source, Key: g.key, Cost: g.Units, Floor: float64(g.Floor) / 1e6}
}

func (g *group) queue() bool { return g.source.Algorithm == LeakyBucketQueue }

// decideAll decides a set, after it has applied the overrides.
func (e *engine) decideAll(ctx context.Context, s *set) (all Results, err error) {
	began := e.begin()
	s.requests, s.ruled = e.overrideAll(s.requests)
	if all, err = e.decideSet(ctx, s); err != nil {
		all = Results{DeniedBy: -1}
	}
	for i := range s.requests {
		if err != nil {
			e.finish(ctx, s.verb, &s.requests[i], new(Result), err, began)
		} else {
			e.finish(ctx, s.verb, &s.requests[i], &all.PerRequest[i], nil, began)
		}
	}
	return all, err
}

// decideSet is decideAll as the policies see it. It takes the steps of decide.
func (e *engine) decideSet(ctx context.Context, s *set) (all Results, err error) {
	for {
		var done bool
		if all, done, err = e.earlyAll(ctx, s); done {
			return all, err
		}
		allowed, err := e.sendAll(ctx, s)
		if err != store.ErrKnown { // else a denial came to be known while the requests waited
			return e.answerAll(ctx, s, allowed, err)
		}
	}
}

// earlyAll answers a set without the store, or compiles it for the store. done: all and err are
// the answer.
func (e *engine) earlyAll(ctx context.Context, s *set) (all Results, done bool, err error) {
	if e.closed.Load() {
		return all, true, store.ErrClosed
	}
	if err = e.compileAll(s); err != nil {
		return all, true, err
	}
	switch blocked := s.blocked(); {
	case (blocked || len(s.groups) == 0) && ctx.Err() != nil:
		return all, true, store.EndedContext(ctx)
	case blocked:
		all = e.untaken(s, false, e.clockTime())
		all.blame()
		return all, true, nil
	case len(s.groups) > 0 && !s.once() && e.remembers(ctx):
		all, done = e.known(s)
	}
	return all, done, nil
}

// sendAll asks the store for a compiled set.
func (e *engine) sendAll(ctx context.Context, s *set) (allowed bool, err error) {
	if len(s.groups) == 0 { // all requests are for shadow policies, or overrides let them pass
		return true, nil
	}
	var known func() bool
	if !s.once() && e.remembers(ctx) {
		known = func() bool { return e.anyKnown(s) }
	}
	allowed, err = e.takeAll(ctx, s, s.groups, known)
	if err == nil && !allowed && !s.full && s.verb.waits {
		allowed, err = e.reuseAll(ctx, s)
	}
	s.received = time.Now()
	return allowed, err
}

// answerAll interprets and remembers what the store answered, or its error.
func (e *engine) answerAll(ctx context.Context, s *set, allowed bool, err error) (all Results, _ error) {
	if err != nil {
		return e.failedAll(ctx, s, err)
	}
	switch {
	case s.full:
		return e.noRoomAll(s), nil
	case slices.ContainsFunc(s.groups, func(g *group) bool { return g.Outcome.Before != nil }):
		return e.replayAll(ctx, s)
	}
	if all = e.results(s, allowed); !allowed {
		e.keep(s, all)
		return all, nil
	}
	for _, g := range s.groups {
		for _, i := range g.indexes {
			s.delay = max(s.delay, all.PerRequest[i].Delay)
		}
	}
	return all, e.decideShadows(ctx, s, all.PerRequest)
}

// compileAll validates the requests and puts those of one policy and key into one group.
// The groups are in lock order, the same for all callers.
func (e *engine) compileAll(s *set) error {
	switch n := len(s.requests); {
	case n == 0:
		return store.Invalid("requests", "none", "pass at least one")
	case n > maxRequests:
		return store.Invalid("requests", strconv.Itoa(n), fmt.Sprintf("must be at most %d", maxRequests))
	}
	type row struct {
		algorithm   algorithm.Name
		policy, key string
	}
	groups := make([]*group, 0, len(s.requests))
	var known map[row]*group // if there are several
	if len(s.requests) > 1 {
		known = make(map[row]*group, len(s.requests))
	}
	c := e.call(s.verb, Request{})
	c.ttl = s.ttl
	defer e.put(c)
	for i := range s.requests {
		c.request = s.requests[i]
		if err := e.compile(c); err != nil && s.verb == verbWait {
			return err
		} else if err != nil {
			return fmt.Errorf("requests[%d]: %w", i, err)
		}
		in, k := &c.request, row{c.op.Algorithm, c.op.Policy, c.op.Key}
		g := known[k]
		if err := oneOnce(s.requests, i); err != nil {
			return err
		}
		switch {
		case g == nil:
			g = &group{Group: store.Group{Query: c.op.Query, Index: i, Admission: c.op.Admission}, source: in.Policy, key: in.Key, ahead: math.Inf(1)}
			g.indexes, g.Needs = g.one.index[:0], g.one.need[:0]
			if groups = append(groups, g); known != nil {
				known[k] = g
			}
		case g.source != in.Policy:
			return fmt.Errorf("%w: requests[%d] and requests[%d] are for the same key under two policies %s that are not equal", store.ErrInvalid, g.Index, i, store.Quote(in.Policy.Name))
		case g.Admission != nil:
			return fmt.Errorf("%w: requests[%d] and requests[%d] are for the same policy %s and key: add up their Costs", store.ErrInvalid, g.Index, i, store.Quote(in.Policy.Name))
		case g.Floor != c.op.Floor:
			return fmt.Errorf("%w: requests[%d].Floor %v and requests[%d].Floor %v are for the same policy and key and must be equal",
				store.ErrInvalid, g.Index, s.requests[g.Index].Floor, i, in.Floor)
		default:
			sum := g.Units + in.Cost
			g.Units, g.Cost, g.Unit, g.Note = sum, sum, sum, cmp.Or(g.Note, c.op.Note)
		}
		if g.indexes, g.Needs = append(g.indexes, i), append(g.Needs, g.Units); s.verb.waits && g.queue() {
			g.ahead = float64(s.within.Microseconds()) * g.Leak
			g.Room = min(g.Ceiling(), g.ahead+in.Cost)
		}
	}
	s.arrange(groups)
	return nil
}

// arrange sorts the groups of a set in lock order, and sets aside those that overrides or shadow
// policies decide.
func (s *set) arrange(groups []*group) {
	slices.SortFunc(groups, func(a, b *group) int { return inLockOrder(&a.Group, &b.Group) })
	now, commit := groups[0].Now, groups[0].Commit
	s.groups, s.shadows = groups[:0], nil
	for _, g := range groups {
		if g.Commit == store.Durable {
			commit = store.Durable
		}
		switch {
		case s.ruled != nil && s.ruled[g.Index].decides():
		case g.source.Shadow && !s.alone:
			s.shadows = append(s.shadows, g)
		default:
			s.groups = append(s.groups, g)
		}
	}
	for _, g := range s.groups { // one transaction, and one reading of Config.Now
		g.Now, g.Commit = now, commit
	}
}

// inLockOrder compares two groups.
func inLockOrder(a, b *store.Group) int {
	switch {
	case a.Last:
		return 1
	case b.Last:
		return -1
	}
	return cmp.Or(cmp.Compare(a.Algorithm.Index(), b.Algorithm.Index()), strings.Compare(a.Policy, b.Policy), strings.Compare(a.Key, b.Key))
}

// takeAll sends the groups to the store. A single request is a plain Take, or a Get if it
// can never fit. known is store.Op's. What is granted to a set that waits after its caller
// has left is given back.
func (e *engine) takeAll(ctx context.Context, s *set, groups []*group, known func() bool) (allowed bool, err error) {
	op := &store.Op{Kind: store.TakeAll, Known: known, OwnRow: true}
	first := groups[0]
	single := len(groups) == 1 && len(first.Needs) == 1
	impossible := slices.ContainsFunc(groups, func(g *group) bool { return !g.Possible() })
	if impossible = impossible && !s.once(); single {
		op.Admission = first.Admission
	}
	switch {
	case single && op.Admission != nil && !impossible:
		op.Kind, op.Query = store.Reserve, first.Query
	case single && impossible:
		op.Kind, op.Query = store.Get, first.Query
	case single:
		op.Kind, op.Query, op.Merges = store.Take, first.Query, !s.verb.waits && !first.Records()
	case impossible:
		op.Kind = store.GetAll
	}
	if !single {
		op.Groups = make([]*store.Group, len(groups))
		for i, g := range groups {
			op.Groups[i] = &g.Group
		}
	}
	if s.verb.waits {
		op.Late = func() {
			if single {
				first.Outcome = op.Outcome
			}
			e.withdrawals.add()
			go func() {
				defer e.withdrawals.done()
				e.withdraw(ctx, groups, time.Now())
			}()
		}
	}
	if err := e.send(ctx, op); err != nil { // a statement in flight may still need them
		return false, err
	}
	s.rows, s.full = op.Rows, op.Full != store.HasRoom
	if first.Full = first.Full || s.full && single; s.full {
		return false, nil
	} else if single {
		first.Outcome, first.Views = op.Outcome, append(first.one.view[:0], op.Outcome.View)
		return first.Fits() || first.Outcome.Before != nil, nil
	}
	return op.Allowed, nil
}

// blocked reports whether an override denies a request of an enforced policy, and with it all.
func (s *set) blocked() bool {
	for i := range s.ruled {
		if s.ruled[i].Blocked && !s.requests[i].Policy.Shadow {
			return true
		}
	}
	return false
}

// untaken returns the answers of a set before those of its groups: overrides decide, and
// other requests are skipped. So are those of shadow policies if the others are denied.
func (e *engine) untaken(s *set, allowed bool, at time.Time) Results {
	all := Results{Allowed: allowed, DeniedBy: -1, PerRequest: make([]Result, len(s.requests))}
	for i := range s.requests {
		r := &all.PerRequest[i]
		in := &s.requests[i]
		if s.ruled != nil && s.ruled[i].decides() && (allowed || s.ruled[i].Unlimited || !in.Policy.Shadow) {
			if *r = e.ruled(in, s.ruled[i]); !allowed {
				r.Granted = 0
			}
		} else {
			*r = undecided(in, SourceSkipped, at)
		}
	}
	return all
}

// results returns the answer to each request.
func (e *engine) results(s *set, allowed bool) Results {
	var at time.Time
	if len(s.groups) > 0 {
		at = time.UnixMicro(s.groups[0].Outcome.Now)
	}
	all := e.untaken(s, allowed, at)
	rows := 0
	for _, g := range s.groups {
		rows += len(g.indexes)
	}
	rows = e.rows(rows, &store.Op{Rows: s.rows})
	for _, g := range s.groups {
		for i, index := range g.indexes {
			r := &all.PerRequest[index]
			if in := &s.requests[index]; allowed && g.place.IsZero() {
				*r = g.share(s.verb, i, in, e.source)
			} else if *r = g.refused(i, in, e.source); allowed {
				r.usePlace(in.Cost, g.place.From.Add(occupies(&g.Query, g.Needs[i]-in.Cost)))
			}
			r.rows = rows
		}
		if g.source.OnError == FailLocal && !e.tx && e.local != nil {
			e.local.learn(&g.Query, &g.Outcome)
		}
		if !allowed && g.Outcome.IsBlocked() { // the block may be newer than the remembered denial
			e.denied.forget(rowKey{g.source.Name, g.source.Algorithm.table(), g.key})
		}
	}
	all.blame()
	return all
}

// decideShadows decides each request of a shadow policy by itself, after all others were
// granted, and sets its answer. Outside a transaction none of them fails the whole, whose
// others are counted. After an error of the store the rest are not sent.
func (e *engine) decideShadows(ctx context.Context, s *set, answers []Result) error {
	var away error
	for _, g := range s.shadows {
		for _, i := range g.indexes {
			if away != nil {
				answers[i] = e.degrade(ctx, &s.requests[i], away)
				continue
			}
			one := &set{verb: s.verb, requests: s.requests[i : i+1], alone: true, ttl: s.ttl, within: s.within, by: s.by}
			all, err := e.decideSet(ctx, one)
			switch {
			case err == nil:
				answers[i] = all.PerRequest[0]
			case e.tx || len(s.requests) == 1 && !e.passesShadow(ctx, err):
				return err
			default:
				away = err
				answers[i] = e.degrade(ctx, &s.requests[i], away)
			}
			if err == nil && all.Allowed {
				one.groups[0].Index = i
				s.groups = append(s.groups, one.groups...) // for withdraw
			}
		}
	}
	return nil
}
