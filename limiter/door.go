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
)

// engine is what Limiter and Tx have in common: the door through which all verbs go to
// the store. Verbs for one key are in this file, AllowAll is in all.go, and Settle and
// Cancel, which take an ID, are in reserve.go.
type engine struct {
	*shared
	store store.Store
	tx    bool // in the caller's transaction
}

// shared is what a Limiter and its Txs share.
type shared struct {
	source    Source
	timeout   time.Duration // none if not positive
	remember  time.Duration // Config.IdempotencyTTL
	keySecret []byte
	clock     func() time.Time                                                     // nil: the store's
	observe   func(ctx context.Context, request Request, result Result, err error) // may be nil
	logger    *slog.Logger

	closed   atomic.Bool
	leaving  sync.RWMutex // read-locked while places of a queue may go back
	calls    sync.Pool    // of *call
	denied   *denials     // nil: none are remembered
	degraded degradedLog
}

// call is one verb on its way through the door.
type call struct {
	verb    verb
	request Request
	query   store.Query
	// compiled is the policy that query.Rules were compiled from.
	compiled Policy

	within    time.Duration    // verbWait: for how long the caller can wait
	ttl       time.Duration    // verbReserve
	admission *store.Admission // what to note of it once it is granted; nil: nothing
	grant     algorithm.Grant  // verbUndo: what the units were counted in
	blockFor  int64            // verbBlock: microseconds

	outcome store.Outcome
	usage   store.Usage // verbUsage
	lost    bool        // a statement in flight may still read query
}

// call returns a call; put gives it back.
func (e *engine) call(v verb, in Request) *call {
	c, ok := e.calls.Get().(*call)
	if !ok {
		c = new(call)
	}
	c.verb, c.request = v, in
	return c
}

func (e *engine) put(c *call) {
	if !c.lost {
		*c = call{query: store.Query{Rules: c.query.Rules}, compiled: c.compiled}
		e.calls.Put(c)
	}
}

// one takes a verb through the door that needs no more than a request.
func (e *engine) one(ctx context.Context, v verb, in Request) (Result, error) {
	c := e.call(v, in)
	defer e.put(c)
	return e.pass(ctx, c)
}

// pass takes a call through the door: closed, compile, remembered, run, forget, fail
// open, interpret, remember, and observe.
func (e *engine) pass(ctx context.Context, c *call) (r Result, err error) {
	if e.observe != nil && c.verb.decides() {
		defer func() { e.observe(ctx, c.request, r, err) }()
	}
	if e.closed.Load() {
		return r, store.ErrClosed
	}
	var at attempt
	if e.denied != nil && c.verb == verbTake && !e.tx && ctx.Err() == nil {
		var known bool
		if r, at, known = e.denied.lookup(&c.request); known {
			return r, nil
		}
	}
	if err := e.compile(c); err != nil {
		return r, err
	}
	c.outcome, err = e.run(ctx, c)
	if c.verb.givesBack() || err == nil && c.verb == verbUpTo && c.outcome.IsBlocked() { // perhaps blocked since what is remembered
		e.denied.forget(&c.request.Policy, c.request.Key)
	}
	switch {
	case err != nil:
		c.lost = true
		return e.failed(ctx, c, err)
	case !c.verb.decides() && c.verb != verbUsage:
		return r, nil
	case c.outcome.Before != nil:
		return replay(c.query, c.verb, &c.request, c.outcome.Before, e.source)
	}
	r = result(&c.query, c.verb, &c.outcome, c.request.Policy.Limit, e.source)
	if at.Valid() && !r.Allowed {
		e.denied.keep(at, &c.query, &c.request, &c.outcome, r)
	}
	return r, nil
}

// run sends a call to the store. What can never fit is not tried: reading tells how
// the key stands.
func (e *engine) run(ctx context.Context, c *call) (o store.Outcome, err error) {
	q := &c.query
	switch c.verb {
	case verbWait:
		return e.onward(ctx,
			func(ctx context.Context) (store.Outcome, error) { return e.take(ctx, c) },
			func(o store.Outcome) { e.leave(ctx, c.request, q, o.Ticket) })
	case verbCheck:
		return e.store.Get(ctx, q)
	case verbUsage:
		c.usage, err = e.store.Usage(ctx, q)
		return c.usage.Outcome, err
	case verbCharge:
		return e.store.Charge(ctx, q)
	case verbRefund:
		return e.store.Refund(ctx, q)
	case verbUndo:
		return e.store.Undo(ctx, q, c.grant)
	case verbReset:
		return o, e.store.Reset(ctx, q)
	case verbBlock:
		return o, e.store.Block(ctx, q, c.blockFor)
	case verbUnblock:
		return o, e.store.Unblock(ctx, q, 0)
	}
	return e.take(ctx, c)
}

func (e *engine) take(ctx context.Context, c *call) (store.Outcome, error) {
	q := &c.query
	switch {
	case c.admission != nil && (q.Possible() || c.admission.Idempotency != ""):
		return e.store.Reserve(ctx, q, c.admission)
	case !q.Possible():
		return e.store.Get(ctx, q)
	}
	return e.store.Take(ctx, q)
}

// failed answers a call that the store has failed.
func (e *engine) failed(ctx context.Context, c *call, err error) (r Result, _ error) {
	if c.verb.decides() && c.verb != verbReserve && c.request.Policy.OnError == FailOpen && e.failsOpen(ctx, err) {
		return e.degrade(ctx, &c.query, &c.request.Policy, err), nil
	}
	if errors.Is(err, store.ErrOverloaded) {
		r.Reason = ReasonOverload
	}
	return r, err
}

// failsOpen reports whether FailOpen answers for an error.
func (e *engine) failsOpen(ctx context.Context, err error) bool {
	return !e.tx && ctx.Err() == nil && !errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrClosed)
}

// degrade returns FailOpen's answer.
func (e *engine) degrade(ctx context.Context, q *store.Query, p *Policy, err error) Result {
	e.degraded.warn(ctx, e.logger, p.Name, err)
	at := time.Now()
	if q.Now != nil {
		at = time.UnixMicro(*q.Now)
	}
	return Result{
		Allowed: true, Granted: q.Units, Limit: p.Limit, Burst: q.Burst,
		Source: SourceDegraded, At: at,
	}
}

// degradedLog warns at most once every ten seconds.
type degradedLog struct {
	since atomic.Int64 // allowed since the last warning
	next  atomic.Int64 // when the next may come, in Unix microseconds
}

func (l *degradedLog) warn(ctx context.Context, logger *slog.Logger, policy string, err error) {
	l.since.Add(1)
	now, next := time.Now(), l.next.Load()
	if now.UnixMicro() < next || !l.next.CompareAndSwap(next, now.Add(10*time.Second).UnixMicro()) {
		return
	}
	logger.WarnContext(ctx, "pglimit: allowed without a decision, as the policy fails open",
		"policy", policy, "since_last", l.since.Swap(0), "error", err)
}

// compile validates a call and compiles it into its query.
func (e *engine) compile(c *call) error {
	if err := e.compileKey(&c.query, &c.compiled, &c.request); err != nil {
		return err
	}
	if c.verb >= verbReset {
		return nil
	}
	return e.compileCost(c)
}

// compileKey compiles the policy and the key of a request. If compiled equals the
// policy, q has its rules already.
func (e *engine) compileKey(q *store.Query, compiled *Policy, in *Request) error {
	p := &in.Policy
	if p.Name == "" || *compiled != *p {
		if err := p.Validate(); err != nil {
			return err
		}
		q.Rules, *compiled = newRules(p), *p
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

// compileCost compiles what a call asks for.
func (e *engine) compileCost(c *call) error {
	q, v, in := &c.query, c.verb, &c.request
	switch {
	case v == verbRefund && in.Policy.Algorithm == LeakyBucketQueue:
		return fmt.Errorf("%w: Refund on %s: a place in the queue goes back when its Wait is cancelled", store.ErrUnsupported, LeakyBucketQueue)
	case v == verbReserve && in.Policy.Algorithm == LeakyBucketQueue:
		return fmt.Errorf("%w: Reserve on %s: what waits in a queue is not given back", store.ErrUnsupported, LeakyBucketQueue)
	case v == verbWait && in.Policy.Algorithm != LeakyBucketQueue:
		return fmt.Errorf("%w: Wait on %s: only a %s tells when one's turn is; use Allow and RetryAfter", store.ErrUnsupported, in.Policy.Algorithm, LeakyBucketQueue)
	case v == verbWait && in.IdempotencyKey != "":
		return fmt.Errorf("%w: DoWait with an IdempotencyKey, which is for Do and Reserve", store.ErrUnsupported)
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
	q.Shared = v == verbTake && c.admission == nil && q.Possible()
	switch v {
	case verbUpTo:
		// Whole units of a whole request; a fractional one is granted whole or in
		// steps of a millionth of the burst.
		q.Cost = 1
		if in.Cost != math.Trunc(in.Cost) {
			q.Cost = min(1e-6*q.Burst, in.Cost)
		}
		// A unit more may be less than a step, which is then what has to fit.
		q.Count, q.Unit = in.Cost/q.Cost, min(max(1, q.Cost), in.Cost)
	case verbCharge, verbRefund, verbUndo:
		q.Cost, q.Count = 1, in.Cost
	case verbWait:
		q.Room = min(q.Capacity, float64(float64(c.within.Microseconds())*q.Leak)+q.Units)
	}
	return nil
}

// note sets what the store notes of a call once it is granted.
func (e *engine) note(c *call) error {
	state, remember := store.Spent, e.remember
	if reason := badDuration(remember); reason != "" {
		return store.Invalid("Config.IdempotencyTTL", remember.String(), reason)
	}
	if c.verb == verbReserve {
		state = store.Open
	}
	c.admission = &store.Admission{
		ID: string(c.request.Policy.Algorithm) + ":" + rand.Text(), State: state,
		TTL: c.ttl.Microseconds(), Remember: remember.Microseconds(), Limit: c.request.Policy.Limit,
	}
	if c.request.IdempotencyKey != "" {
		c.admission.Idempotency = keys.Stored(c.request.IdempotencyKey, e.keySecret)
	}
	return nil
}

// now returns Config.Now as the store takes it: nil for the store's own clock.
func (c *shared) now() *int64 {
	if c.clock == nil {
		return nil
	}
	us := c.clock().UnixMicro()
	return &us
}

// freed forgets the denials of a key, as stored, that units went back to: if there is
// a Config.KeySecret, the caller's key is not known.
func (s *shared) freed(a algorithm.Name, policy, key string) {
	if len(s.keySecret) == 0 {
		s.denied.forget(&Policy{Name: policy, Algorithm: Algorithm(a)}, key)
	}
}

// onward makes a decision that a caller wants to wait for. Cancelling ctx does not
// cancel its statement, whose fate would be unknown then: the caller returns
// immediately, and what is granted later is undone.
func (e *engine) onward(ctx context.Context, take func(context.Context) (store.Outcome, error), undo func(store.Outcome)) (store.Outcome, error) {
	if ctx.Done() == nil || ctx.Err() != nil {
		return take(ctx)
	}
	type answer struct {
		outcome store.Outcome
		err     error
	}
	answers := make(chan answer)
	e.leaving.RLock()
	if e.closed.Load() { // meanwhile, by a Close that has not seen this one
		e.leaving.RUnlock()
		return store.Outcome{}, store.ErrClosed
	}
	detached, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer e.leaving.RUnlock()
		defer end()
		o, err := take(detached)
		select {
		case answers <- answer{o, err}:
		case <-ctx.Done():
			if err == nil && o.Granted > 0 {
				undo(o)
			}
		}
	}()
	select {
	case a := <-answers:
		return a.outcome, a.err
	case <-ctx.Done():
		if e.timeout <= 0 { // nothing else would end it
			time.AfterFunc(longestUndo, end)
		}
		return store.Outcome{}, store.EndedContext(ctx)
	}
}

// leave gives the place of a cancelled Wait back as well as it can: the caller is
// going, and a place that stays taken only makes others wait longer.
func (e *engine) leave(ctx context.Context, request Request, q *store.Query, ticket int64) {
	e.undo(ctx, request, q, func(ctx context.Context) error { return e.store.Leave(ctx, q, ticket) })
}

// longestUndo bounds what gives back where there is no Config.Timeout.
const longestUndo = time.Second

// undo runs f, which gives back for q. ctx does not end f, but some time does.
func (e *engine) undo(ctx context.Context, request Request, q *store.Query, f func(context.Context) error) {
	ctx = context.WithoutCancel(ctx)
	if e.timeout <= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longestUndo)
		defer cancel()
	}
	q.Now = e.now()
	err := f(ctx)
	e.denied.forget(&request.Policy, request.Key)
	if err != nil {
		e.logger.WarnContext(ctx, "pglimit: a cancelled Wait could not give back what it had", "policy", request.Policy.Name, "error", err)
	}
}
