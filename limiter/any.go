package limiter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// maxPools is the largest number of requests of an AllowAny.
const maxPools = 10

// Any is the answer to an AllowAny or AllowAnySplit.
type Any struct {
	// Allowed reports whether the cost was granted. If not, nothing was taken from any pool.
	Allowed bool
	// PerRequest has the answer of each pool, in the order of the requests. Granted is what it
	// gave. If it gave nothing, Allowed is false, and RetryAfter is the time until it could give
	// what was asked of it: the cost; of an AllowAnySplit, what the pools before it left, or
	// after a denial what all others lack. The Source of a pool that was not asked is
	// SourceSkipped.
	PerRequest []Result
	// GrantedBy is the index of the pool that gave, of several the first. It is -1 if none did.
	GrantedBy int
	// RetryAfter is 0 if the cost was granted. Else it is the least of the pools', and Never if
	// they can never grant it. If no pool alone could have what the others lack, but all
	// together, it is the time until all are empty.
	RetryAfter time.Duration
}

// anyJSON is an Any in JSON.
type anyJSON struct {
	Allowed    bool     `json:"allowed"`
	GrantedBy  *int     `json:"granted_by"`
	RetryAfter *float64 `json:"retry_after_s"`
	PerRequest []Result `json:"per_request"`
}

// MarshalJSON writes granted_by as null if it is -1, and per_request as Result does.
func (a Any) MarshalJSON() ([]byte, error) {
	t := anyJSON{a.Allowed, nil, seconds(a.RetryAfter), a.PerRequest}
	if a.GrantedBy >= 0 {
		t.GrantedBy = &a.GrantedBy
	}
	if t.PerRequest == nil {
		t.PerRequest = []Result{}
	}
	return json.Marshal(t)
}

// Err returns nil if the cost was granted, else a *DeniedError with the Result of the pool with
// the least RetryAfter, the RetryAfter of the whole, and PerRequest. Call it if the method
// returned no error.
func (a Any) Err() error {
	if a.Allowed {
		return nil
	}
	denied := &DeniedError{PerRequest: a.PerRequest}
	for i, r := range a.PerRequest {
		if i == 0 || r.RetryAfter < denied.Result.RetryAfter {
			denied.Result = r
		}
	}
	denied.Result.RetryAfter = a.RetryAfter
	return denied
}

// conclude sets the other fields by PerRequest. later is when all pools together can grant the
// cost.
func (a *Any) conclude(later time.Duration) {
	a.GrantedBy = slices.IndexFunc(a.PerRequest, func(r Result) bool { return r.Granted > 0 })
	if a.Allowed = a.GrantedBy >= 0; a.Allowed {
		return
	}
	a.RetryAfter = later
	for _, r := range a.PerRequest {
		a.RetryAfter = min(a.RetryAfter, r.RetryAfter)
	}
}

// AllowAny requests one cost that any of several pools may give, such as a weekly limit, then
// credits, then an overdraft: the first that has room for the whole cost gives it. It takes from
// 1 to 10 requests, in the order in which the pools are asked, each with the same Cost. Undo
// gives back what a pool gave.
//
//   - The pools after the one that gives are not touched. One that has no room begins no block,
//     also if all deny.
//   - It takes one round trip, and one more for each pool that has no room, unless this process
//     remembers that: see Config.DenyCacheTTL. It does not for policies with BlockFor or a
//     Calendar. Each statement has Config.Timeout and shares statements as that of an Allow.
//   - The pools are asked one after the other, not at one moment. Units that come back meanwhile
//     to a pool that was asked before are not seen. None grants more than its limit.
//   - In a transaction the rows of all pools are locked first, in the order of AllowAll, so that
//     two AllowAnys do not deadlock. It takes two round trips. Expired reservations go back
//     only if all pools deny.
//   - A pool under a shadow policy or of an unlimited key lets the request pass if it is asked. A
//     blocked key, or one beyond Policy.MaxKeys, gives nothing.
//   - While the database is away: an error if any policy is FailClosed, else the first pool
//     that is FailOpen gives, or that is FailLocal and has room in memory.
//   - A repeated AllowAny whose requests have an IdempotencyKey counts once: the pools that gave
//     answer, with Result.Replayed, although others may have room by now. It locks the rows of
//     all pools in one transaction, as AllowAnySplit does.
//   - Costs that differ and two requests for one policy and key are ErrInvalid, a
//     LeakyBucketQueue and Attempts ErrUnsupported. Errors name the request by its index. A Lease
//     is not used.
//   - Config.Observe is called for each request. One that had no room is observed as denied,
//     also if another pool gave.
func (e *engine) AllowAny(ctx context.Context, requests ...Request) (Any, error) {
	return e.decidePools(ctx, &pools{verb: verbAny, requests: slices.Clone(requests)})
}

// AllowAnySplit is AllowAny for one cost that several pools may give together: the first what
// fits, the next what is left, and so on; or nothing at all if all together have no room for
// it. A pool gives whole units of a whole cost, and of a fractional one all that is left or steps
// of a millionth of its burst, as AllowUpTo grants them.
//
//   - It takes one round trip if the first pool has room for the whole cost. If not, a
//     transaction of three more locks the rows of all pools, in the order of AllowAll, divides
//     the cost and takes the parts. None can change in between.
//   - Its denials are not remembered, except that of the whole cost by the first pool.
//   - While the database is away one pool gives the whole cost, as of AllowAny.
func (e *engine) AllowAnySplit(ctx context.Context, requests ...Request) (Any, error) {
	return e.decidePools(ctx, &pools{verb: verbSplit, requests: slices.Clone(requests)})
}

// pools is the requests of an AllowAny.
type pools struct {
	verb     *verb
	requests []Request // with their overrides; of a split, each with the Cost that was asked of it
	ruled    []Ruling  // by request; nil: overrides decide about none
	calls    []*call   // for the whole cost
	answers  []Result
	later    time.Duration // Any.conclude's
}

// ruling returns what overrides decide about a request.
func (p *pools) ruling(i int) (by Ruling) {
	if p.ruled != nil {
		by = p.ruled[i]
	}
	return by
}

// decidePools decides an AllowAny, after it has applied the overrides.
func (e *engine) decidePools(ctx context.Context, p *pools) (Any, error) {
	began := e.begin()
	p.later, p.answers = Never, make([]Result, len(p.requests))
	p.requests, p.ruled = e.overrideAll(p.requests)
	err := e.askPools(ctx, p)
	for i := range p.requests {
		e.finish(ctx, p.verb, &p.requests[i], &p.answers[i], err, began)
	}
	if err != nil {
		return Any{GrantedBy: -1}, err
	}
	a := Any{PerRequest: p.answers}
	a.conclude(p.later)
	return a, nil
}

// askPools sets the answers.
func (e *engine) askPools(ctx context.Context, p *pools) (err error) {
	if e.closed.Load() {
		return store.ErrClosed
	}
	defer func() {
		for _, c := range p.calls {
			e.put(c)
		}
	}()
	switch err = e.compilePools(p); {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return store.EndedContext(ctx)
	}
	var away error
	switch {
	case e.tx || p.requests[0].IdempotencyKey != "":
	case p.verb == verbAny:
		return e.askInTurn(ctx, p, nil)
	case p.ruled != nil && p.ruled[0].decides() || p.calls[0].op.Possible():
		if away, err = e.askPool(ctx, p, 0, nil); err != nil || p.answers[0].Allowed {
			return err
		}
	}
	if away == nil {
		away = e.lockPools(ctx, p)
	}
	if away != nil {
		err = e.askInTurn(ctx, p, away)
	}
	return err
}

// askInTurn asks one pool after the other for the whole cost. away is askPool's.
func (e *engine) askInTurn(ctx context.Context, p *pools, away error) (err error) {
	for i := range p.calls {
		if away, err = e.askPool(ctx, p, i, away); err != nil || p.answers[i].Allowed || p.requests[i].Policy.Shadow {
			break
		}
	}
	return err
}

// compilePools validates the requests and compiles them, each for the whole cost.
func (e *engine) compilePools(p *pools) error {
	if n := len(p.requests); n == 0 || n > maxPools {
		return store.Invalid("requests", strconv.Itoa(n), fmt.Sprintf("must be from 1 to %d", maxPools))
	}
	v := verbAny
	for i := range p.requests {
		in := &p.requests[i]
		c := e.call(verbAny, *in)
		p.calls = append(p.calls, c)
		if err := e.compile(c); err != nil {
			return fmt.Errorf("requests[%d]: %w", i, err)
		}
		if err := oneOnce(p.requests, i); err != nil {
			return err
		}
		if first := p.requests[0].Cost; in.Cost != first {
			return store.Invalid(fmt.Sprintf("requests[%d].Cost", i), amount(in.Cost), "must be that of requests[0], "+amount(first)+": all pools are asked for one cost")
		}
		for j, other := range p.calls[:i] {
			if other.op.Algorithm == c.op.Algorithm && other.op.Policy == c.op.Policy && other.op.Key == c.op.Key {
				return fmt.Errorf("%w: requests[%d] and requests[%d] are for the same policy %s and key: name each pool once", store.ErrInvalid, j, i, store.Quote(in.Policy.Name))
			}
		}
		if by := p.ruling(i); !by.decides() && !in.Policy.Shadow && in.Policy.OnError == FailClosed {
			v = verbAnyClosed
		}
		p.answers[i] = undecided(in, SourceSkipped, e.clockTime())
	}
	for _, c := range p.calls {
		c.verb, c.op.OwnRow = v, true
	}
	return nil
}

// askPool asks a pool for the whole cost, by a remembered denial or a statement. If the store
// failed before, away is its error, and it is not asked. It returns that error, and nil if the
// policy has an answer for it.
func (e *engine) askPool(ctx context.Context, p *pools, i int, away error) (error, error) {
	c, r := p.calls[i], &p.answers[i]
	if by := p.ruling(i); by.decides() {
		*r = e.ruled(&c.request, by)
		return away, nil
	}
	if away == nil {
		if e.remembers(ctx) {
			var denied bool
			if *r, c.at, denied = e.denied.lookup(&c.request); denied {
				return nil, nil
			}
			if c.request.Policy.BlockFor > 0 { // it would deny an Allow whose denial begins a block
				c.at = attempt{}
			}
		}
		away = e.store.Do(ctx, &c.op)
	}
	return away, e.answer(ctx, c, r, away)
}

// lockPools asks the pools in one transaction that locks the rows of all.
func (e *engine) lockPools(ctx context.Context, p *pools) error {
	op := &store.Op{Kind: store.TakeAny, OwnRow: true}
	groups := make([]*store.Group, 0, maxPools) // by request, up to the last that is asked
	commit := store.Relaxed
	for i, c := range p.calls {
		in, by := &p.requests[i], p.ruling(i)
		groups = append(groups, nil)
		if !by.decides() {
			groups[i] = p.group(i)
			groups[i].Now, groups[i].Last = p.calls[0].op.Now, in.Policy.Shadow // one reading of Config.Now
			op.Groups = append(op.Groups, groups[i])
			if c.op.Commit != store.Relaxed {
				commit = c.op.Commit
			}
		}
		if op.Partial = by.Unlimited || in.Policy.Shadow; op.Partial {
			break
		}
	}
	slices.SortFunc(op.Groups, inLockOrder)
	for _, g := range op.Groups {
		g.Commit = commit
	}
	if len(op.Groups) > 0 {
		if err := e.store.Do(ctx, op); err != nil { // failed notes it
			return err
		}
	}
	return e.pooled(p, groups, op)
}

// group returns the i-th pool as a group of a TakeAny.
func (p *pools) group(i int) *store.Group {
	g := &store.Group{Query: p.calls[i].op.Query, Index: i, Admission: p.calls[i].op.Admission}
	if cost := g.Units; p.verb == verbSplit {
		g.Cost = step(cost, scale(&p.requests[i].Policy, g.Burst))
		g.Count = cost / g.Cost
	}
	return g
}

// pooled sets the answers of pools by those of the groups that a TakeAny has decided.
func (e *engine) pooled(p *pools, groups []*store.Group, op *store.Op) (err error) {
	again := slices.ContainsFunc(op.Groups, func(g *store.Group) bool { return g.Outcome.Before != nil })
	rest, most, empty := p.requests[0].Cost, 0.0, time.Duration(0)
	for i, g := range groups {
		in, r := &p.requests[i], &p.answers[i]
		if rest == 0 {
			break
		}
		if p.verb == verbSplit {
			in.Cost = rest
		}
		switch {
		case g != nil && g.Outcome.Before != nil:
			c := &call{verb: p.verb, request: p.calls[i].request, op: store.Op{Query: g.Query}}
			if *r, err = replay(c, g.Outcome.Before, e.source); err != nil {
				return fmt.Errorf("requests[%d]: %w", i, err)
			}
			r.rows = e.rows(1, op)
			rest -= r.Granted
			continue
		case g != nil && again: // it gave nothing
			continue
		case g == nil:
			if *r = e.ruled(in, p.ruled[i]); r.Allowed {
				rest = 0
			}
			continue
		case g.Full:
			*r = e.noRoom(verbAny, in)
			continue
		}
		q := g.Query
		q.Units, q.Count = g.Given, 1
		if g.Given == 0 {
			q.Units = g.Need
		}
		q.Cost, q.Unit = q.Units, q.Units
		*r = result(&q, verbTake, &g.Outcome, in.Policy.Limit, e.source)
		r.rows = e.rows(1, op)
		most += g.Share(0, g.Units)
		rest, empty = rest-g.Given, max(empty, r.ResetAfter)
	}
	if most >= p.requests[0].Cost {
		p.later = empty
	}
	return nil
}
