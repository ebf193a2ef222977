package verbs

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/limiter"
)

// Call is a call of a method as a value, so that a proof can draw it, send it over anything
// that has the methods, and count what came of it.
type Call struct {
	// Op names the method: allow (AllowN), upto, once (Do), check, charge, grant, refund, undo, all,
	// any, split (AllowAnySplit), reserve, reserve_up_to, settle, cancel, reserve_all, settle_all, cancel_all, usage, block, unblock, reset, attempt, succeeded,
	// failed, acquire (DoAcquire), renew or release.
	Op string
	limiter.Request
	Requests []limiter.Request // of all, any, split and reserve_all
	Undone   limiter.Result    // of undo
	IDs      []string          // of settle_all and cancel_all
	ID       string            // of settle, cancel, succeeded, failed, renew and release
	For      time.Duration     // a reservation's, a block's, an attempt's or a slot's
	From     string            // an attempt's
	Lot      limiter.GrantOptions
}

// Answer is what a Call returned.
type Answer struct {
	limiter.Results               // several of all, any, split and batch, and one otherwise
	After           time.Duration // Any.RetryAfter
	Expires         time.Time
	Usage           limiter.Usage
	Err             error
	Fence           int64  // a slot's
	ID              string // a reservation's, an attempt's or a slot's
	IDs             []string
	Idle            bool // nothing was called
}

// One returns the answer of a method that returns a Result.
func One(r limiter.Result, err error) Answer {
	return Answer{Results: limiter.Results{Allowed: r.Allowed, PerRequest: []limiter.Result{r}}, Err: err}
}

// anyOf returns the answer of an AllowAny. DeniedBy is its GrantedBy.
func anyOf(a limiter.Any, err error) Answer {
	return Answer{Results: limiter.Results{Allowed: a.Allowed, PerRequest: a.PerRequest, DeniedBy: a.GrantedBy}, After: a.RetryAfter, Err: err}
}

func reserved(made limiter.Reservation, err error) Answer {
	a := One(made.Result, err)
	a.ID, a.Expires = made.ID, made.ExpiresAt
	return a
}

// Make makes the call. It panics if there is no such Op.
func (c *Call) Make(ctx context.Context, d Limiter) (a Answer) {
	p, key := c.Policy, c.Key
	switch c.Op {
	case "allow":
		if c.Floor != 0 {
			return One(d.Do(ctx, limiter.Request{Policy: p, Key: key, Cost: c.Cost, Floor: c.Floor}))
		}
		return One(d.AllowN(ctx, p, key, c.Cost))
	case "upto":
		return One(d.AllowUpTo(ctx, p, key, c.Cost))
	case "once":
		return One(d.Do(ctx, c.Request))
	case "check":
		return One(d.Check(ctx, p, key, c.Cost))
	case "charge":
		return One(d.Charge(ctx, p, key, c.Cost))
	case "grant":
		return One(d.Grant(ctx, p, key, c.Cost, c.Lot))
	case "refund":
		return One(d.Refund(ctx, p, key, c.Cost))
	case "undo":
		return One(d.Undo(ctx, p, key, c.Undone))
	case "all":
		a.Results, a.Err = d.AllowAll(ctx, c.Requests...)
	case "any":
		return anyOf(d.AllowAny(ctx, c.Requests...))
	case "split":
		return anyOf(d.AllowAnySplit(ctx, c.Requests...))
	case "reserve":
		return reserved(d.Reserve(ctx, c.Request, c.For))
	case "reserve_up_to":
		return reserved(d.ReserveUpTo(ctx, c.Request, c.For))
	case "reserve_all":
		made, err := d.ReserveAll(ctx, c.For, c.Requests...)
		return Answer{Results: made.Results, IDs: made.IDs, Expires: made.ExpiresAt, Err: err}
	case "settle_all":
		a.PerRequest, a.Err = d.SettleAll(ctx, c.IDs, c.Cost)
	case "cancel_all":
		a.Err = d.CancelAll(ctx, c.IDs...)
	case "settle":
		return One(d.Settle(ctx, c.ID, c.Cost))
	case "cancel":
		a.Err = d.Cancel(ctx, c.ID)
	case "usage":
		a.Usage, a.Err = d.Usage(ctx, p, key)
	case "block":
		a.Err = d.Block(ctx, p, key, c.For)
	case "unblock":
		a.Err = d.Unblock(ctx, p, key)
	case "reset":
		a.Err = d.Reset(ctx, p, key)
	default:
		return c.hold(ctx, d)
	}
	return a
}

// hold sends a call of attempts or slots.
func (c *Call) hold(ctx context.Context, d Limiter) (a Answer) {
	p, key := c.Policy, c.Key
	switch c.Op {
	case "attempt":
		made, err := d.Attempt(ctx, p, key, limiter.AttemptOptions{From: c.From, TTL: c.For})
		return reserved(limiter.Reservation(made), err)
	case "succeeded":
		a.Err = d.Succeeded(ctx, c.ID)
	case "failed":
		return One(d.Failed(ctx, c.ID))
	case "acquire":
		return c.acquire(ctx, d)
	case "renew":
		a.Expires, a.Err = d.Renew(ctx, c.ID, c.For)
	case "release":
		a.Err = d.Release(ctx, c.ID)
	default:
		panic(c.Op)
	}
	return a
}

func (c *Call) acquire(ctx context.Context, d Limiter) Answer {
	var made limiter.Slot
	var err error
	if c.Request == c.Policy.Request(c.Key, 1) && c.For == 0 {
		made, err = d.Acquire(ctx, c.Policy, c.Key)
	} else {
		made, err = d.DoAcquire(ctx, c.Request, c.For)
	}
	a := One(made.Result, err)
	a.ID, a.Expires, a.Fence = made.ID, made.ExpiresAt, made.Fence
	return a
}

// Plan returns the numbers of p, for its bound.
func Plan(p *limiter.Policy) bound.Plan {
	return bound.Plan{
		Algorithm: algorithm.Name(p.Algorithm), Limit: p.Limit, Burst: p.Burst, Period: p.Period, Tick: p.Tick,
		Aligned: p.Aligned, Calendar: algorithm.Unit(p.Calendar), TimeZone: p.TimeZone, Anchor: p.Anchor,
	}
}
