package limiter

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
)

// Slot is the result of an Acquire. Any process that knows the ID may renew or release it.
type Slot struct {
	// Result is the answer. If it is not Allowed, there is no slot and the other fields are
	// zero.
	Result Result
	// ID names the slot for Renew and Release: concurrency:random:policy:key, as that of a
	// [Reservation] does. Whoever knows it can release the slot. If Result is Shadowed or its
	// Source is SourceOverride, it begins with uncounted: nothing is held.
	ID string
	// Fence is greater than that of each earlier slot of the key. Send it to what the slot
	// guards, and let that refuse a Fence smaller than the greatest it has seen: then a holder
	// that was stopped for longer than its slot lasted changes nothing. It is 0 if nothing is
	// held.
	Fence int64
	// ExpiresAt is when the slot ends unless it is renewed, by the database's clock.
	ExpiresAt time.Time

	local span
}

// span is how long a slot is surely held by this process's clock.
type span struct {
	sent time.Time     // before the statement was sent; zero in another process
	life time.Duration // from then on
}

// MarshalJSON writes id, fence and expires_at as null if there is no slot.
func (s Slot) MarshalJSON() ([]byte, error) {
	t := struct {
		ID        *string    `json:"id"`
		Fence     *int64     `json:"fence"`
		ExpiresAt *time.Time `json:"expires_at"`
		Result    Result     `json:"result"`
	}{Result: s.Result}
	if s.ID != "" {
		t.ID, t.Fence, t.ExpiresAt = &s.ID, &s.Fence, &s.ExpiresAt
	}
	return json.Marshal(t)
}

// Acquire takes a slot of one unit under a policy of the algorithm Concurrency, or is denied.
// Release it, or let it end after Policy.Period. It is DoAcquire at cost 1.
//
//	slot, err := l.Acquire(ctx, exports, tenant)
//	if err != nil || !slot.Result.Allowed {
//		return …
//	}
//	defer l.Release(ctx, slot.ID)
//
// DoWith releases and renews by itself.
func (e *engine) Acquire(ctx context.Context, p Policy, key string) (Slot, error) {
	return e.DoAcquire(ctx, p.Request(key, 1), 0)
}

// DoAcquire takes a slot of request.Cost units for ttl, or is denied. ttl is whole microseconds
// from one second to a hundred years, or 0 for Policy.Period. The cost is whole. A denial is a
// Result, not an error.
//
//   - At most Policy.Limit units of a key are held at once, over all processes, by the
//     database's clock. A slot is held from Acquire until Release or ExpiresAt, whichever comes
//     first, and not at ExpiresAt.
//   - RetryAfter of a denial is the time until enough slots have ended if none is renewed or
//     released, or the rest of a block; Never if the cost is above the Limit.
//   - Result.Level is the number of units held, and Remaining what is left of Limit. ResetAfter
//     lasts until the last slot ends.
//   - With a smaller Limit those who hold more keep it. Block denies new slots, and those held
//     stay. Reset takes all slots away: their holders get ErrNoSlot.
//   - If the answer is lost, nobody knows the ID, and the slot is held until it ends. So let ttl
//     be short, and renew.
//   - Under Relaxed a crash of the server can lose the last slots, and others may hold them too.
//   - A key's row has all of its slots, about 60 bytes each, and each call writes it. Keep them
//     below 1,000.
//   - Policy.OnError does not apply. Without the database there is no slot, but an error. An
//     IdempotencyKey, a Floor and an Estimate return ErrUnsupported.
//   - If a shadow policy lets pass what it would have denied, nothing is held.
func (e *engine) DoAcquire(ctx context.Context, request Request, ttl time.Duration) (Slot, error) {
	if ttl == 0 {
		ttl = request.Policy.Period
	} else if reason := valid.Duration(ttl); reason != "" || ttl < store.MinTTL {
		return Slot{}, e.refuse(ctx, verbAcquire, request, store.Invalid("ttl", durations.Format(ttl), "must be whole microseconds from one second to a hundred years, or 0 for the policy's Period"))
	}
	c := e.call(verbAcquire, request)
	c.op.Slot, c.sent, c.held = &store.Holding{TTL: ttl.Microseconds()}, true, true
	defer e.put(c)
	sent := time.Now()
	r, err := e.decide(ctx, c)
	switch {
	case err != nil || !r.Allowed: // after an error the op may still be in use
		return Slot{Result: r}, err
	case r.Shadowed || r.Source == SourceOverride:
		id := store.UncountedID(rand.Text(), c.request.Policy.Name, keys.Stored(c.request.Key, e.keySecret))
		return Slot{Result: r, ID: id, ExpiresAt: r.At.Add(ttl)}, nil
	}
	h := c.op.Slot
	return Slot{Result: r, ID: c.op.Reservation().Public(), Fence: h.Fence, ExpiresAt: time.UnixMicro(h.EndsAt), local: span{sent, ttl}}, nil
}

// Renew moves the end of a slot to ttl from now, and returns it. A later end stays. ttl is as in
// DoAcquire; 0 is the Period of the key's last Acquire. The end of a slot is final: once it has
// passed, Renew returns ErrNoSlot, even if nobody else holds what the slot held.
//
// Renew is always Durable. An ID that begins with uncounted changes nothing.
func (e *engine) Renew(ctx context.Context, id string, ttl time.Duration) (expiresAt time.Time, err error) {
	expiresAt, _, err = e.extend(ctx, id, ttl)
	return expiresAt, err
}

// extend is Renew with how long the slot is surely held.
func (e *engine) extend(ctx context.Context, id string, ttl time.Duration) (expiresAt time.Time, local span, err error) {
	local.sent = time.Now()
	if reason := valid.Duration(ttl); reason != "" || ttl != 0 && ttl < store.MinTTL {
		return expiresAt, local, e.refuse(ctx, verbRenew, Request{}, store.Invalid("ttl", durations.Format(ttl), "must be whole microseconds from one second to a hundred years, or 0 for the policy's Period"))
	}
	op, err := e.endSlot(ctx, verbRenew, id, ttl)
	switch {
	case err != nil:
		return expiresAt, local, err
	case op == nil:
		local.life = max(ttl, store.MinTTL)
		return e.clockTime().Add(local.life), local, nil
	}
	local.life = time.Duration(op.Slot.EndsAt-op.Outcome.UpdatedAt) * time.Microsecond
	return time.UnixMicro(op.Slot.EndsAt), local, nil
}

// Release gives a slot back. If it was released before or has ended, there was a Reset or no such
// slot, it returns ErrNoSlot and changes nothing. So a call whose answer was lost can be
// repeated: ErrNoSlot then says that the slot is not held. Within this process the next
// AcquireWait for the key tries at once.
//
// A crash of the server right after it can lose a Release: the slot is then held until it ends. In
// a transaction it is as durable as that.
func (e *engine) Release(ctx context.Context, id string) error {
	op, err := e.endSlot(ctx, verbRelease, id, 0)
	if err == nil && op != nil && !e.tx {
		e.lines.wake(queueKey{op.Policy, op.Key})
	}
	return err
}

// endSlot moves or ends a slot. op is nil for one for which nothing was counted.
func (e *engine) endSlot(ctx context.Context, v *verb, public string, ttl time.Duration) (op *store.Op, err error) {
	began, in := e.begin(), Request{}
	var r Result // what Observe sees
	defer func() { e.finish(ctx, v, &in, &r, err, began) }()
	if e.closed.Load() {
		return nil, store.ErrClosed
	}
	if op, err = e.byID(&in, v, algorithm.Concurrency, "slot", public); op == nil {
		return nil, err
	}
	op.Slot = &store.Holding{TTL: ttl.Microseconds()}
	err = e.send(ctx, op)
	r.rows = e.rows(1, op)
	return op, err
}

// held returns the outcome of an op about slots as a Result.
func held(op *store.Op, v *verb, cost float64, source Source) Result {
	h, o := op.Slot, &op.Outcome
	r := Result{
		Limit: float64(h.Limit), Burst: float64(h.Limit), Level: float64(h.Held), Remaining: float64(max(0, h.Limit-h.Held)),
		ResetAfter: after(o, max(h.EmptyAt, o.BlockedUntil)), Full: h.Held >= h.Limit, Source: source, At: time.UnixMicro(o.Now),
	}
	blocked := o.IsBlocked()
	if r.Allowed = h.Granted; v != verbAcquire {
		r.Allowed = !blocked && (h.Cost == 0 || h.Held+h.Cost <= h.Limit)
	}
	if blocked {
		r.Remaining = 0
	}
	switch {
	case r.Allowed:
		r.Granted = cost
		return r
	case blocked:
		r.Reason = ReasonBlocked
	default:
		r.Reason = ReasonLimit
	}
	free := h.FreeAt
	if h.Cost > h.Limit {
		free = algorithm.Never
	}
	r.RetryAfter = after(o, max(free, o.BlockedUntil))
	return r
}

// compileSlot compiles a call under a policy of Concurrency, or one that is for such policies
// only.
func (e *engine) compileSlot(c *call) error {
	p, v, in := &c.request.Policy, c.verb, &c.request
	switch {
	case p.Algorithm != Concurrency:
		return fmt.Errorf("%w: %s on %s: it needs a policy of %s; use Allow or Reserve", store.ErrUnsupported, v.name, p.Algorithm, Concurrency)
	case v.serves == servesMeters:
		return fmt.Errorf("%w: %s on %s: use Acquire and Release", store.ErrUnsupported, v.name, Concurrency)
	case in.IdempotencyKey != "" || in.Floor != 0 || in.Estimate:
		return fmt.Errorf("%w: an IdempotencyKey, Floor or Estimate with %s on %s", store.ErrUnsupported, v.name, Concurrency)
	case v.answers && !(in.Cost >= 0 && in.Cost <= valid.MaxUnits && in.Cost == math.Trunc(in.Cost)) || v == verbAcquire && in.Cost == 0:
		return store.Invalid("cost", printable.Number(in.Cost), fmt.Sprintf("must be whole and at least 1 for a policy of %s; Check takes 0 too", Concurrency))
	}
	if c.op.Slot == nil {
		c.op.Slot = new(store.Holding)
	}
	h := c.op.Slot
	h.Cost, h.Limit, h.Period = int64(in.Cost), int64(p.Limit), p.Period.Microseconds()
	switch {
	case v == verbAcquire && h.Cost <= h.Limit:
		c.op.ID = rand.Text()
	case v == verbAcquire, v == verbCheck, v == verbUsage:
		c.op.Kind = store.GetSlots
	}
	return nil
}
