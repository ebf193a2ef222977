package limiter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/dispatch"
	"github.com/pglimit/pglimit/internal/turns"
)

// engine has the methods that Limiter and Tx share. Those for one key are in verbs.go and
// AllowAll is in all.go.
type engine struct {
	*shared
	store store.Store
	tx    bool // in the caller's transaction
}

// shared is the part of an engine that a Limiter and its Txs share.
type shared struct {
	source     Source
	timeout    time.Duration // none if not positive
	remember   time.Duration // Config.IdempotencyTTL
	keySecret  []byte
	policies   *Policies                                // of overrides; nil: none
	clock      func() time.Time                         // nil: the store's
	observe    func(ctx context.Context, o Observation) // may be nil
	denialLog  *DenialLog                               // nil: denials are not counted
	logSecret  string                                   // keySecret for denialLog
	dispatcher *dispatch.Dispatcher                     // nil in memory
	logger     *slog.Logger

	closed   atomic.Bool
	leaving  *tally    // places of a queue that go back
	calls    sync.Pool // of *call
	denied   *denials  // nil: none are remembered
	turns    *abandonedTurns
	degraded throttle
	refusals refusals
}

// call is one use of a method.
type call struct {
	verb    *verb
	request Request
	op      store.Op
	// compiled is the policy that the op's Rules were compiled from.
	compiled Policy

	within time.Duration // verbWait: the time until the caller's deadline
	turn   turns.Turn    // verbWait: abandoned by another and taken; or none
	ttl    time.Duration // verbReserve
	at     attempt       // to remember a denial

	part    bool  // of another call, which Observe sees
	failure error // for which a policy let it pass
	lost    bool  // a statement in flight may still read the op
}

// call returns a call from the pool; put returns it there.
func (e *engine) call(v *verb, in Request) *call {
	c, ok := e.calls.Get().(*call)
	if !ok {
		c = new(call)
	}
	c.verb, c.request = v, in
	return c
}

func (e *engine) put(c *call) {
	if !c.lost {
		// The other fields belong to verbs that set them, or to compile.
		c.request, c.at, c.part, c.op = Request{}, attempt{}, false, store.Op{Query: store.Query{Rules: c.op.Rules}}
		e.calls.Put(c)
	}
}

// one makes a call that needs only a request.
func (e *engine) one(ctx context.Context, v *verb, in Request) (Result, error) {
	c := e.call(v, in)
	defer e.put(c)
	return e.decide(ctx, c)
}

// decide makes a call: it compiles the request, looks it up in the remembered denials,
// runs it, and interprets and remembers the answer.
func (e *engine) decide(ctx context.Context, c *call) (r Result, err error) {
	if !c.part {
		began := e.begin()
		defer func() { e.finish(ctx, c, &r, err, began) }()
	}
	if e.closed.Load() {
		return r, store.ErrClosed
	}
	if e.override(c.verb, &c.request) {
		return e.passUnlimited(ctx, c)
	}
	if c.verb.remembers && e.remembers(ctx) && !e.reusable(&c.request) {
		var known bool
		if r, c.at, known = e.denied.lookup(&c.request); known {
			return r, nil
		}
	}
	if err := e.compile(c); err != nil {
		return r, err
	}
	if c.at.Valid() && !c.op.Merges {
		c.op.Known = func() (known bool) {
			_, c.at, known = e.denied.lookup(&c.request) // the attempt begins now
			return known
		}
	}
	if c.verb == verbWait {
		e.undoLate(&c.op, func() {
			e.leave(ctx, c.request, &c.op.Query, c.op.Outcome.Ticket, e.turnOf(&c.op.Query, &c.op.Outcome, time.Now()))
		})
	}
	for {
		if err = e.store.Do(ctx, &c.op); err != store.ErrKnown {
			break
		}
		var known bool
		if r, c.at, known = e.denied.lookup(&c.request); known {
			return r, nil
		}
	}
	if c.verb.givesBack || err == nil && c.verb == verbUpTo && c.op.Outcome.IsBlocked() { // the block may be newer than the remembered denial
		e.denied.forget(&c.request.Policy, c.request.Key)
	}
	switch {
	case err != nil:
		c.lost = true
		return e.failed(ctx, c, err)
	case !c.verb.answers:
		return r, nil
	case c.op.Outcome.Before != nil:
		return replay(c.op.Query, c.verb, &c.request, c.op.Outcome.Before, e.source)
	}
	r = result(&c.op.Query, c.verb, &c.op.Outcome, c.request.Policy.Limit, e.source)
	if c.verb == verbWait && !r.Allowed {
		e.reuse(ctx, c, &r)
	}
	if c.at.Valid() && !r.Allowed && !c.op.Hurried() { // a deadline denies only for itself
		e.denied.keep(c.at, &c.op.Query, &c.request, &c.op.Outcome, r)
	}
	return r, nil
}

// remembers reports whether remembered denials may answer.
func (e *engine) remembers(ctx context.Context) bool {
	return e.denied != nil && !e.tx && ctx.Err() == nil
}

// failed returns the answer to a call that failed in the store.
func (e *engine) failed(ctx context.Context, c *call, err error) (r Result, _ error) {
	e.refusals.note(ctx, e.logger, err)
	p := &c.request.Policy
	if c.verb.opens && p.OnError == FailOpen && e.failsOpen(ctx, err) || c.verb.requests && e.shadows(ctx, p, err) {
		c.failure = err
		return e.degrade(ctx, &c.op.Query, p, err), nil
	}
	if errors.Is(err, store.ErrOverloaded) {
		r.Reason = ReasonOverload
	}
	return r, err
}

// failsOpen reports whether FailOpen applies to an error.
func (e *engine) failsOpen(ctx context.Context, err error) bool {
	if e.tx || ctx.Err() != nil {
		return false
	}
	for _, other := range [...]error{store.ErrInvalid, store.ErrClosed, store.ErrOverloaded, store.ErrLocked, store.ErrAnswering, store.ErrCrowded, store.ErrOwners} {
		if errors.Is(err, other) {
			return false
		}
	}
	return e.refusals.open(err)
}

// compile validates a call and compiles it into its query.
func (e *engine) compile(c *call) error {
	c.op.Kind = c.verb.kind
	if err := e.compileKey(&c.op.Query, &c.compiled, &c.request); err != nil || !c.verb.answers {
		return err
	}
	return e.compileCost(c)
}

// compileKey compiles the policy and the key of a request. If compiled equals the policy,
// q already has its rules.
func (e *engine) compileKey(q *store.Query, compiled *Policy, in *Request) error {
	p := &in.Policy
	if p.Name == "" || *compiled != *p {
		if err := p.Validate(); err != nil {
			return err
		}
		rules, err := newRules(p)
		if err != nil {
			return err
		}
		q.Rules, *compiled = rules, *p
	}
	if err := validateKey(in.Key); err != nil {
		return err
	}
	*q = store.Query{
		Rules: q.Rules, Algorithm: algorithm.Name(p.Algorithm), Policy: p.Name,
		Key: keys.Stored(in.Key, e.keySecret), Now: e.now(),
	}
	switch {
	case e.tx:
	case p.Durability == Relaxed:
		q.Commit = store.Relaxed
	default:
		q.Commit = store.Durable
	}
	return nil
}

// compileCost validates a call's cost and compiles it into its query.
func (e *engine) compileCost(c *call) error {
	q, v, in := &c.op.Query, c.verb, &c.request
	switch {
	case v == verbRefund && in.Policy.Algorithm == LeakyBucketQueue:
		return fmt.Errorf("%w: Refund on %s: a place in the queue goes back when its Wait is cancelled", store.ErrUnsupported, LeakyBucketQueue)
	case v == verbReserve && in.Policy.Algorithm == LeakyBucketQueue:
		return fmt.Errorf("%w: Reserve on %s: units in a queue are not given back", store.ErrUnsupported, LeakyBucketQueue)
	case v == verbWait && in.Policy.Algorithm != LeakyBucketQueue:
		return fmt.Errorf("%w: Wait on %s: only %s has turns; use Allow and RetryAfter", store.ErrUnsupported, in.Policy.Algorithm, LeakyBucketQueue)
	case v == verbWait && in.IdempotencyKey != "":
		return fmt.Errorf("%w: DoWait with an IdempotencyKey; only Do and Reserve take one", store.ErrUnsupported)
	}
	if err := validateCost(v == verbCheck || v == verbUsage, in.Cost, q.Burst); err != nil {
		return err
	}
	if err := validateIdempotencyKey(in.IdempotencyKey); err != nil {
		return err
	}
	if v == verbReserve || v == verbTake && in.IdempotencyKey != "" {
		if err := e.note(c); err != nil {
			return err
		}
	}
	q.Units, q.Cost, q.Count, q.Unit, q.Room = in.Cost, in.Cost, 1, in.Cost, q.Capacity
	c.op.Merges = v == verbTake && c.op.Admission == nil && q.Possible()
	switch v {
	case verbUpTo:
		// See AllowUpTo: whole units, or steps of a millionth of the burst.
		q.Cost = 1
		whole := in.Cost == math.Trunc(in.Cost)
		if !whole {
			q.Cost = min(1e-6*q.Burst, in.Cost)
		}
		// RetryAfter waits for a step if that is more than a unit.
		q.Count, q.Unit = in.Cost/q.Cost, min(max(1, q.Cost), in.Cost)
		// A row of several requests is blocked once a part of it is denied.
		c.op.Merges = whole && q.BlockFor == 0 && q.Possible()
	case verbCharge, verbRefund, verbUndo:
		q.Cost, q.Count = 1, in.Cost
	case verbWait:
		q.Room = min(q.Capacity, float64(float64(c.within.Microseconds())*q.Leak)+q.Units)
	}
	switch admission := c.op.Admission; {
	case v.kind != store.Take && v.kind != store.Reserve:
	case !q.Possible() && (admission == nil || admission.Idempotency == ""):
		c.op.Kind = store.Get
	case admission != nil:
		c.op.Kind = store.Reserve
	}
	return nil
}

// note sets what the store keeps of a call once it is granted.
func (e *engine) note(c *call) error {
	state, ttl, remember := store.Spent, time.Duration(0), e.remember
	if reason := badDuration(remember); reason != "" {
		return store.Invalid("Config.IdempotencyTTL", remember.String(), reason)
	}
	if c.verb == verbReserve {
		state, ttl = store.Open, c.ttl
	}
	c.op.Admission = &store.Admission{
		ID: rand.Text(), State: state,
		TTL: ttl.Microseconds(), Remember: remember.Microseconds(), Limit: c.request.Policy.Limit,
	}
	if c.request.IdempotencyKey != "" {
		c.op.Admission.Idempotency = keys.Stored(c.request.IdempotencyKey, e.keySecret)
	}
	return nil
}

// now returns Config.Now's time for the store; nil selects the store's clock.
func (c *shared) now() *int64 {
	if c.clock == nil {
		return nil
	}
	us := c.clock().UnixMicro()
	return &us
}

// freed forgets the denials of a stored key that units went back to. With a
// Config.KeySecret the caller's key is not known.
func (s *shared) freed(a algorithm.Name, policy, key string) {
	if len(s.keySecret) == 0 {
		s.denied.forget(&Policy{Name: policy, Algorithm: Algorithm(a)}, key)
	}
}

// undoLate makes undo give back what is granted to op after its caller has left: the store
// does not cancel a statement in flight, whose outcome would be unknown.
func (e *engine) undoLate(op *store.Op, undo func()) {
	op.Late = func() {
		e.leaving.add()
		go func() {
			defer e.leaving.done()
			undo()
		}()
	}
}

// longestUndo bounds an undo without Config.Timeout.
const longestUndo = time.Second

// undo carries out op, which gives units of a request back. The end of ctx does not end it;
// a timeout does.
func (e *engine) undo(ctx context.Context, request Request, op *store.Op) error {
	ctx = context.WithoutCancel(ctx)
	if e.timeout <= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longestUndo)
		defer cancel()
	}
	op.Now = e.now()
	err := e.store.Do(ctx, op)
	e.denied.forget(&request.Policy, request.Key)
	if err != nil {
		e.logger.WarnContext(ctx, "pglimit: a cancelled Wait could not give its units back", "policy", request.Policy.Name, "error", err)
	}
	return err
}
