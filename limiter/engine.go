package limiter

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/places"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/dispatch"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/internal/valid"
)

// engine has the methods that Limiter and Tx share, in verbs.go. It decides a call for one
// key here, and several requests together in set.go.
type engine struct {
	*shared
	store     store.Store
	unbounded store.Store // the same for an op without a Bound
	tx        bool        // in the caller's transaction
}

// shared is the part of an engine that a Limiter and its Txs share.
type shared struct {
	source     Source
	timeout    time.Duration // none if not positive
	remember   time.Duration // Config.IdempotencyTTL
	keySecret  []byte
	overriding                                          // by Config.Policies
	clock      func() time.Time                         // nil: the store's
	clockTime  func() time.Time                         // this process's time, by Config.Now if that is set
	observe    func(ctx context.Context, o Observation) // may be nil
	denialLog  Observer                                 // may be nil
	dispatcher *dispatch.Dispatcher                     // nil in memory
	logger     *slog.Logger

	closed      atomic.Bool
	withdrawals *inProgress // of cancelled Waits, in progress
	calls       sync.Pool   // of *call
	denied      *denials    // nil: none are remembered
	leases      *leases     // nil: none are taken
	places      *places.Places[queueKey]
	lines       *lines // of callers that wait for slots
	degraded    throttle.Throttle
	refusals    refusals
	local       *local // nil in memory
}

// newEngine returns an engine without a store.
func newEngine(c *Config, source Source) *engine {
	return &engine{shared: &shared{
		source: source, timeout: c.Timeout, remember: c.IdempotencyTTL, keySecret: c.KeySecret, overriding: overriding{c.Policies, c.clockTime},
		clock: c.Now, clockTime: c.clockTime, observe: c.Observe, denialLog: c.DenialLog,
		logger: c.Logger, refusals: refusals{failOpen: c.MisconfiguredFailsOpen}, withdrawals: newInProgress(), places: places.New[queueKey](maxPlaces), lines: newLines(),
	}}
}

// call is one use of a method for one key.
type call struct {
	verb    *verb
	request Request
	op      store.Op
	// compiled is the policy that the op's Rules were compiled from.
	compiled Policy

	ttl    time.Duration // of a reservation
	asked  float64       // the Cost of an Estimate before it was corrected; else 0
	at     attempt       // to remember a denial
	sent   bool          // the op was compiled
	leased bool          // leases may answer it
	held   bool          // the method reads the op after the decision, and puts the call back
	lost   bool          // a statement in flight may still read the op
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
	if c.lost {
		return
	}
	// The other fields belong to verbs that set them, or to compile.
	c.request, c.at, c.asked, c.held, c.leased = Request{}, attempt{}, 0, false, false
	if c.sent {
		c.sent, c.op = false, store.Op{Query: store.Query{Rules: c.op.Rules, Bound: c.op.Bound, Marks: c.op.Marks, Sums: c.op.Sums, Ledger: c.op.Ledger}}
	}
	e.calls.Put(c)
}

// decide makes a call, by the steps that docs/architecture.md lists.
func (e *engine) decide(ctx context.Context, c *call) (r Result, err error) {
	began := e.begin()
	defer func() {
		e.finish(ctx, c.verb, &c.request, &r, err, began)
		if !c.held {
			e.put(c)
		}
	}()
	var done bool
	if done, err = e.early(ctx, c, &r); done {
		return r, err
	}
	s := e.store
	if c.op.Bound == nil {
		s = e.unbounded
	}
	for {
		if err = s.Do(ctx, &c.op); err != store.ErrKnown {
			err = e.answer(ctx, c, &r, err)
			return r, err
		}
		if r, c.at, done = e.denied.lookup(&c.request); done { // a denial came to be known while the call waited
			return r, nil
		}
	}
}

// early answers a call without the store, or compiles it for the store. done: r and err are the
// answer.
func (e *engine) early(ctx context.Context, c *call, r *Result) (done bool, err error) {
	if e.closed.Load() {
		return true, store.ErrClosed
	}
	if by := e.override(&c.request); by.decides() && c.verb.requests {
		switch err = e.compile(c); {
		case err != nil:
		case ctx.Err() != nil:
			err = store.EndedContext(ctx)
		default:
			*r = e.ruled(&c.request, by)
		}
		return true, err
	}
	if c.request.Estimate {
		if *r, err = e.correct(ctx, c); err != nil || r.Allowed {
			return true, err
		}
	}
	c.leased = e.leases != nil && c.request.Policy.Lease > 0 && c.request.Floor == 0 && c.verb == verbTake && !e.tx && ctx.Err() == nil
	if c.leased && e.lend(&c.request, r) {
		return true, nil
	}
	if c.verb.remembers && e.remembers(ctx) {
		if *r, c.at, done = e.denied.lookup(&c.request); done {
			return true, nil
		}
	}
	if err = e.compile(c); err == nil && c.at.Valid() && !c.op.Merges {
		c.op.Known = func() (known bool) {
			_, c.at, known = e.denied.lookup(&c.request) // the attempt begins now
			return known
		}
	}
	return err != nil, err
}

// answer interprets and remembers what the store answered, or its error.
func (e *engine) answer(ctx context.Context, c *call, r *Result, err error) error {
	if c.verb.givesBack || err == nil && c.verb.upTo && c.op.Outcome.IsBlocked() { // the block may be newer than the remembered denial
		e.denied.forget(rowOf(&c.request))
	}
	if e.leases != nil && (c.verb == verbBlock || c.verb == verbReset) {
		e.leases.Drop(rowOf(&c.request))
	}
	switch {
	case err != nil:
		c.lost = true
		*r, err = e.failed(ctx, c, err)
		return err
	case c.op.Full != store.HasRoom:
		*r, err = e.withoutRow(c)
		r.rows = e.rows(1, &c.op)
		return err
	case c.verb.answers && c.op.Attempt != nil:
		*r = attempted(&c.op, c.verb, c.request.Cost, e.source)
	case c.verb.answers && c.op.Slot != nil:
		*r = held(&c.op, c.verb, c.request.Cost, e.source)
	case c.verb == verbGrant && refusedGrant(&c.op) != nil:
		return refusedGrant(&c.op)
	case c.verb.answers && c.op.Outcome.Before != nil:
		*r, err = replay(c, c.op.Outcome.Before, e.source)
	case c.verb.answers:
		*r = result(&c.op.Query, c.verb, &c.op.Outcome, c.request.Policy.Limit, e.source)
		if c.at.Valid() && !r.Allowed {
			e.denied.keep(c.at, &c.op.Query, &c.request, &c.op.Outcome, *r)
		}
		if c.leased && r.Allowed {
			e.counted(&c.request, r)
		}
	}
	if c.request.Policy.OnError == FailLocal {
		e.learn(c)
	}
	r.rows = e.rows(1, &c.op)
	return err
}

// remembers reports whether remembered denials may answer.
func (e *engine) remembers(ctx context.Context) bool {
	return e.denied != nil && !e.tx && ctx.Err() == nil
}

// begin returns when a call began, if someone observes it.
func (e *engine) begin() (at time.Time) {
	if e.observe != nil || e.denialLog != nil {
		at = time.Now()
	}
	return at
}

// finish ends a call that began at that time. A shadow policy lets it pass, and the DenialLog
// and Observe see it.
func (e *engine) finish(ctx context.Context, v *verb, in *Request, r *Result, err error, began time.Time) {
	switch {
	case err != nil:
		if *r = failure(err); r.Reason != "" {
			r.At = e.clockTime()
		}
	default:
		if r.Policy = in.Policy; r.Policy.Shadow {
			r.shadow(v, in)
		}
	}
	if denied := e.denialLog != nil && r.Reason != ""; denied || e.observe != nil {
		o := Observation{
			Verb: v.name, Request: *in, Result: *r, Err: err, Duration: time.Since(began), Rows: r.rows, Waiting: e.waiting(),
		}
		if denied {
			e.denialLog.Observe(ctx, o)
		}
		if e.observe != nil {
			e.observe(ctx, o)
		}
	}
	r.rows = 0
}

// refuse is finish for a call that fails before it begins. It returns err.
func (e *engine) refuse(ctx context.Context, v *verb, in Request, err error) error {
	e.finish(ctx, v, &in, new(Result), err, e.begin())
	return err
}

// waiting is Limiter.Waiting.
func (s *shared) waiting() int {
	if s.dispatcher == nil {
		return 0
	}
	return s.dispatcher.Callers()
}

// rows returns Observation.Rows of n requests that op decided.
func (s *shared) rows(n int, op *store.Op) int {
	if s.source == SourceMemory {
		return 0
	}
	return max(n, op.Rows)
}

// send carries out op and logs a refusal.
func (e *engine) send(ctx context.Context, op *store.Op) error {
	err := e.store.Do(ctx, op)
	e.refusals.note(ctx, e.logger, err)
	return err
}

// compile validates a call and compiles it into its query.
func (e *engine) compile(c *call) error {
	c.op.Kind, c.sent = c.verb.kind, true
	err := e.compileKey(&c.op.Query, &c.compiled, &c.request)
	switch {
	case err != nil:
		return err
	case c.request.Policy.Algorithm == Attempts || c.verb.serves == servesAttempts:
		return e.compileAttempt(c)
	case c.request.Policy.Algorithm == Concurrency || c.verb.serves == servesSlots:
		return e.compileSlot(c)
	case !c.verb.answers:
		return nil
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
		if q.Bound, err = keyBound(p); err != nil {
			return err
		}
		if q.Marks, err = p.marks(); err != nil {
			return err
		}
		q.Rules, q.Sums, q.Ledger, *compiled = rules, p.sums(), p.Ledger, *p
	}
	if err := valid.Key(in.Key); err != nil {
		return err
	}
	*q = store.Query{
		Rules: q.Rules, Bound: q.Bound, Marks: q.Marks, Sums: q.Sums, Ledger: q.Ledger, Algorithm: p.Algorithm.table(), Policy: p.Name,
		Key: keys.Stored(in.Key, e.keySecret), Now: e.now(),
	}
	if q.BlockFor = p.BlockFor.Microseconds(); q.Ledger { // a Floor sets it to 0
		q.Note = in.Note
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
	if err := validateVerb(v, in); err != nil {
		return err
	}
	scale := scale(&in.Policy, q.Burst)
	if err := validateCost(v.reads, in.Cost, scale); err != nil {
		return err
	}
	if err := valid.Text("IdempotencyKey", in.IdempotencyKey, maxIdempotencyKey); err != nil {
		return err
	}
	if err := valid.Text("Note", in.Note, maxNote); err != nil {
		return err
	}
	if in.Estimate && v != verbReserve && v != verbReserveUpTo {
		return fmt.Errorf("%w: Estimate true with %s; only Reserve and ReserveUpTo take it", store.ErrUnsupported, v.name)
	}
	var err error
	if q.Floor, err = millionths(in.Floor); err != nil {
		return err
	}
	if q.Floor != 0 || v.pools {
		q.BlockFor = 0 // its denial must not deny others
	}
	switch {
	case v.kind == store.Reserve || v.once && in.IdempotencyKey != "":
		if err := e.admit(c); err != nil {
			return err
		}
	case in.IdempotencyKey != "":
		return fmt.Errorf("%w: an IdempotencyKey with %s; only Do, Grant, AllowAll, AllowAny, Reserve and ReserveUpTo take one", store.ErrUnsupported, v.name)
	}
	q.Units, q.Cost, q.Count, q.Unit, q.Room = in.Cost, in.Cost, 1, in.Cost, q.Ceiling()
	c.op.Merges = (v == verbTake || v.pools) && c.op.Admission == nil && q.Possible() && !q.Records()
	switch {
	case v.upTo:
		// See AllowUpTo: whole units, or steps of a millionth of the burst.
		q.Cost = step(in.Cost, scale)
		whole := in.Cost == math.Trunc(in.Cost)
		// RetryAfter waits for a step if that is more than a unit.
		q.Count, q.Unit = in.Cost/q.Cost, min(max(1, q.Cost), in.Cost)
		// A row of several requests is blocked once a part of it is denied.
		c.op.Merges = v == verbUpTo && whole && q.BlockFor == 0 && q.Possible() && !q.Records()
	case v == verbCharge || v == verbGrant || v == verbRefund || v == verbUndo:
		q.Cost, q.Count = 1, in.Cost
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
