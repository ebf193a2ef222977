package limiter

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/denycache"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/internal/valid"
)

// A policy that is FailLocal is decided here while the database is away: by the algorithms in
// memory, under a part of its limit. A key begins with that part of the units that the database
// last showed. What is granted here is owed, and charged to the key's row when the database
// answers again.
//
// Units are owed only as far as the key's level here still has them. The level leaks, and its
// windows end, as that part of the row would have. So if the parts of all processes are at
// most 1 together, the row is as full after it as if it had decided.

const (
	defaultLocalShare = 0.1
	defaultLocalKeys  = 65_536
)

// local is the state of policies that are FailLocal.
type local struct {
	*engine // decides in memory
	most    int
	every   time.Duration // between two attempts to settle
	known   *denycache.Cache[localKey, standing]
	woken   chan struct{} // the database has answered
	closing chan struct{}

	used     atomic.Bool // memory or owed has something
	mu       sync.Mutex
	memory   *memory.Store
	owed     map[localKey]*debt
	settling bool // a goroutine is
}

// localKey identifies a row.
type localKey struct {
	algorithm   algorithm.Name
	policy, key string // as stored
}

func keyOfQuery(q *store.Query) localKey { return localKey{q.Algorithm, q.Policy, q.Key} }

// standing is how the database last showed a key.
type standing struct {
	view                    algorithm.View
	updatedAt, blockedUntil int64
}

// debt is the units of a key that were granted here.
type debt struct {
	policy Policy      // of the last request
	query  store.Query // by which the key was decided here
	units  float64     // at most; see due
}

func newLocal(c *Config, most int) (*local, error) {
	known, err := denycache.New[localKey, standing](most)
	l := &local{
		engine: newEngine(&Config{Now: c.Now, KeySecret: c.KeySecret, IdempotencyTTL: c.IdempotencyTTL, Logger: c.Logger}, SourceMemory),
		most:   most, every: c.BreakFor, known: known, woken: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	l.reset()
	return l, err
}

// reset forgets what was decided here.
func (l *local) reset() {
	l.memory, l.owed = memory.NewBounded(l.most), map[localKey]*debt{}
	l.engine.store, l.engine.unbounded = l.memory, l.memory
	l.used.Store(false)
}

// share returns LocalShare or its default.
func (p *Policy) share() float64 { return cmp.Or(p.LocalShare, defaultLocalShare) }

// local returns the policy by which this process decides a request alone. Charge records what
// was used, so that it may fill the key as in the database.
func (p Policy) local(v *verb) Policy {
	share, burst := p.share(), p.burst()
	p.OnError, p.LocalShare, p.MaxKeys, p.RestLimit, p.Marks, p.UsageBy, p.UsageFor = FailClosed, 0, 0, 0, "", "", 0
	if v == verbCharge && !p.Algorithm.bucket() {
		return p
	}
	p.Limit = valid.Times(p.Limit, share, 1)
	if p.Burst = valid.Times(burst, share, 1); v == verbCharge {
		p.Burst = burst
	}
	return p
}

// learn remembers how the database answered a call under a policy that is FailLocal.
func (e *engine) learn(c *call) {
	q, o := &c.op.Query, &c.op.Outcome
	switch {
	case e.tx || e.local == nil || c.request.Policy.Shadow:
	case c.verb.answers && o.Before == nil:
		e.local.learn(q, o)
	case c.verb == verbReset || c.verb == verbUnblock:
		e.local.known.Forget(keyOfQuery(q))
	case c.verb == verbBlock:
		now := e.clockTime().UnixMicro()
		s, ok := e.local.known.Lookup(keyOfQuery(q))
		if !ok {
			s.view, s.updatedAt = algorithm.New(q.Algorithm.Family(), now).Seen(&q.Rules, now, now, 0, 0), now
		}
		e.local.learn(q, &store.Outcome{View: s.view, UpdatedAt: s.updatedAt, BlockedUntil: max(s.blockedUntil, now+c.op.ForUs)})
	}
}

func (l *local) learn(q *store.Query, o *store.Outcome) {
	k := keyOfQuery(q)
	if _, ok := l.known.Lookup(k); !ok {
		k.key = strings.Clone(k.key) // it may be a part of a large text
	}
	l.known.Keep(l.known.Begin(k), k, standing{o.View, o.UpdatedAt, o.BlockedUntil})
	if l.used.Load() {
		l.answered()
	}
}

// warm gives the key of a request under p's part that part of what the database last showed. ok
// is false if no further key can be kept.
func (l *local) warm(in *Request, p *Policy) (ok bool) {
	var q store.Query
	if l.compileKey(&q, new(Policy), in) != nil {
		return false
	}
	k := keyOfQuery(&q)
	if l.owed[k] == nil && len(l.owed) >= l.most {
		return false
	}
	l.used.Store(true)
	s, known := l.known.Lookup(k)
	return !known || l.memory.Warm(&q, s.view.Part(&q.Rules, p.share()), s.updatedAt, s.blockedUntil) == nil
}

// decideLocal answers a call without the database, whose error is err. It returns err if the
// part of the limit can never grant the request, or no further key can be kept.
func (e *engine) decideLocal(ctx context.Context, c *call, err error) (Result, error) {
	r, ok := e.decidePart(ctx, c)
	if !ok {
		return Result{}, err
	}
	e.logDegraded(ctx, &c.request.Policy, decidedInMemory, err)
	r.Source = SourceDegraded
	return r, nil
}

const decidedInMemory = "decided in memory: the policy fails local"

// decidePart decides a call under its policy's part.
func (e *engine) decidePart(ctx context.Context, c *call) (r Result, ok bool) {
	l, p := e.local, &c.request.Policy
	if l == nil {
		return r, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.call(c.verb, c.request)
	in.request.Policy, in.op.Grant, in.held = p.local(c.verb), c.op.Grant, true
	defer l.put(in)
	if !l.warm(&in.request, p) {
		return r, false
	}
	r, err := l.decide(ctx, in)
	if err != nil || !r.Allowed && r.RetryAfter == Never {
		return r, false
	}
	switch {
	case r.Replayed || c.verb.reads:
	case c.verb.givesBack:
		e.owe(p, &in.op.Query, -r.Granted)
	default:
		e.owe(p, &in.op.Query, r.Granted)
	}
	return r, true
}

// decideAllLocal is decideLocal for a set. Those of its policies that are FailOpen allow if the
// others do.
func (e *engine) decideAllLocal(ctx context.Context, s *set, err error) (all Results, _ error) {
	part, places := &set{verb: s.verb, within: s.within, by: s.by}, []int(nil)
	for i, in := range s.requests {
		if (s.ruled == nil || !s.ruled[i].decides()) && !in.Policy.Shadow && in.Policy.OnError == FailLocal {
			part.requests, places = append(part.requests, in), append(places, i)
		}
	}
	some, ok := e.decideParts(ctx, part)
	if !ok {
		return all, err
	}
	e.logDegraded(ctx, &part.requests[0].Policy, decidedInMemory, err)
	all = e.untaken(s, some.Allowed, e.clockTime())
	for i, place := range places {
		r := &all.PerRequest[place]
		*r = some.PerRequest[i]
		r.Source = SourceDegraded
		s.delay = max(s.delay, r.Delay)
	}
	for i := range s.requests {
		if r := &all.PerRequest[i]; some.Allowed && r.Source == SourceSkipped {
			*r = e.degrade(ctx, &s.requests[i], err)
		}
	}
	s.groups = nil // a Wait that is cancelled gives nothing back
	all.blame()
	return all, nil
}

// decideParts decides a set under its policies' parts.
func (e *engine) decideParts(ctx context.Context, s *set) (all Results, ok bool) {
	l := e.local
	if l == nil {
		return all, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	policies := make([]Policy, len(s.requests))
	for i := range s.requests {
		in := &s.requests[i]
		policies[i], in.Policy = in.Policy, in.Policy.local(s.verb)
		if !l.warm(in, &policies[i]) {
			return all, false
		}
	}
	all, err := l.decideSet(ctx, s)
	if err != nil || !all.Allowed && all.PerRequest[all.DeniedBy].RetryAfter == Never {
		return all, false
	}
	for _, g := range s.groups {
		if all.Allowed && g.Outcome.Before == nil {
			e.owe(&policies[g.Index], &g.Query, g.Units)
		}
	}
	return all, true
}

// localKeys returns the largest number of keys that are decided here.
func localKeys(c *Config) int {
	if c == nil {
		return defaultLocalKeys
	}
	return cmp.Or(c.MaxKeys, defaultLocalKeys)
}
