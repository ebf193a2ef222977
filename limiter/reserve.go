package limiter

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
)

// Reserve sets units aside until Settle or Cancel, unlike Reserve of golang.org/x/time/rate,
// which books a time to act, as DoWait does. It reserves request.Cost units for ttl, all or
// nothing. They are consumed immediately. Settle gives back what was not spent. Cancel, or
// else the end of ttl, gives back what Settle at 0 would. ttl is whole microseconds from one
// second to a hundred years. A denial is a Result, not an error. While reservations are
// open, RetryAfter assumes that all of their units will be spent.
//
//   - A request whose IdempotencyKey was reserved before returns the same reservation and
//     answer, with Result.Replayed. After that reservation was cancelled or has expired,
//     the request makes another.
//   - A LeakyBucketQueue returns ErrUnsupported: its units are not given back. So does a Balance
//     with ShardingRouter.
//   - A Balance gives units back to the lots that they came from: see Settle.
//   - Policy.OnError does not apply. If the database is unavailable, Reserve returns an
//     error, since a reservation that is not stored could not be settled.
//   - If a shadow policy lets pass what it would have denied, nothing is reserved. The
//     Reservation has an ID, and Settle and Cancel of it change nothing.
func (e *engine) Reserve(ctx context.Context, request Request, ttl time.Duration) (Reservation, error) {
	return e.reserve(ctx, verbReserve, request, ttl)
}

// ReserveUpTo is Reserve of what fits, in the steps of AllowUpTo. Result.Granted is the number
// of units reserved, and Result.Allowed reports whether there is any. Spend no more than that,
// and Settle or Cancel it as any reservation. Result.RetryAfter is the time until one more
// unit, or the rest if that is less, could be granted.
//
//   - A request that is granted a part starts no block of Policy.BlockFor, and gives no expired
//     reservations of the key back.
//   - A request whose IdempotencyKey was reserved before returns the same reservation with
//     RetryAfter 0, even if more would fit now. The same IdempotencyKey with another Cost is an
//     ErrInvalid. So is a Reserve with it, if ReserveUpTo reserved less than the Cost.
//   - If a shadow policy would have granted a part, that part is reserved, and Result.Granted
//     is the Cost. Settle counts what was spent.
//   - What Reserve says of a LeakyBucketQueue, of errors and of denials by a shadow policy
//     holds for ReserveUpTo too.
func (e *engine) ReserveUpTo(ctx context.Context, request Request, ttl time.Duration) (Reservation, error) {
	return e.reserve(ctx, verbReserveUpTo, request, ttl)
}

func (e *engine) reserve(ctx context.Context, v *verb, request Request, ttl time.Duration) (Reservation, error) {
	if err := validTTL(ttl); err != nil {
		return Reservation{}, e.refuse(ctx, v, request, err)
	}
	c := e.call(v, request)
	c.ttl, c.held = ttl, true
	defer e.put(c)
	r, err := e.decide(ctx, c)
	switch {
	case err != nil || !r.Allowed:
		return Reservation{Result: r}, err
	case c.lost || r.Source == SourceOverride || c.op.Outcome.Before == nil && !c.op.Granted(): // a lost op may still be in use
		return Reservation{r, e.uncounted(&c.request), r.At.Add(ttl)}, nil
	}
	id, until := reserved(&c.op.Query, c.op.Admission, &c.op.Outcome)
	return Reservation{r, id, until}, nil
}

func validTTL(ttl time.Duration) error {
	if reason := valid.Duration(ttl); reason != "" || ttl < store.MinTTL {
		return store.Invalid("ttl", durations.Format(ttl), "must be whole microseconds from one second to a hundred years")
	}
	return nil
}

// uncounted returns an ID for a request that passes and reserves nothing.
func (e *engine) uncounted(in *Request) string {
	return store.UncountedID(rand.Text(), in.Policy.Name, keys.Stored(in.Key, e.keySecret))
}

// reserved returns the ID of what a request has reserved, now or before, and when it expires.
func reserved(q *store.Query, a *store.Admission, o *store.Outcome) (id string, until time.Time) {
	if o.Before != nil {
		return o.Before.Public(), time.UnixMicro(o.Before.ExpiresAt)
	}
	of := store.ReservationID{Algorithm: q.Algorithm, Policy: q.Policy, Key: q.Key, ID: a.ID}
	return of.Public(), time.UnixMicro(o.UpdatedAt + a.TTL)
}

// admit sets what the store keeps of a call once it is granted.
func (e *engine) admit(c *call) error {
	state, ttl, remember := store.Spent, time.Duration(0), e.remember
	if reason := valid.Duration(remember); reason != "" {
		return store.Invalid("Config.IdempotencyTTL", remember.String(), reason)
	}
	switch {
	case c.verb.kind == store.Reserve:
		state, ttl = store.Open, c.ttl
	case c.verb == verbGrant:
		state = store.Granted
	}
	c.op.Admission = &store.Admission{
		ID: rand.Text(), State: state,
		TTL: ttl.Microseconds(), Remember: remember.Microseconds(), Limit: c.request.Policy.Limit,
	}
	if c.op.Admission.Requested, c.op.Admission.Estimate = c.asked, c.asked; c.asked == 0 && (c.verb == verbReserveUpTo || c.verb.pools || c.verb == verbSplit) {
		c.op.Admission.Requested = c.request.Cost
	}
	if c.request.IdempotencyKey != "" {
		c.op.Admission.Idempotency = keys.Stored(c.request.IdempotencyKey, e.keySecret)
	}
	return nil
}

// correct sets the Cost of an Estimate to what is reserved for it. The Result is Allowed if a
// shadow policy lets the request pass without that.
func (e *engine) correct(ctx context.Context, c *call) (r Result, err error) {
	if err = e.compile(c); err != nil {
		return r, err
	}
	op := store.Op{Kind: store.Estimate, Query: c.op.Query}
	if err = e.store.Do(ctx, &op); err != nil {
		return e.failed(ctx, c, err)
	}
	c.asked = c.request.Cost
	if op.Algorithm == algorithm.Balance { // which has no burst: the cost may double
		op.Burst = min(algorithm.MaxUnits, max(1, 2*c.asked))
	}
	c.request.Cost = store.Correct(c.asked, op.Factor, op.Burst)
	return r, nil
}
