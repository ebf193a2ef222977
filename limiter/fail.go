package limiter

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// failed returns the answer to a call that failed in the store.
func (e *engine) failed(ctx context.Context, c *call, err error) (r Result, _ error) {
	e.refusals.note(ctx, e.logger, err)
	p := &c.request.Policy
	switch {
	case c.verb.requests && p.Shadow && e.passesShadow(ctx, err):
	case !c.verb.opens || p.OnError == FailClosed || !e.failsOpen(ctx, err):
		return r, err
	case p.OnError == FailLocal:
		return e.decideLocal(ctx, c, err)
	}
	return e.degrade(ctx, &c.request, err), nil
}

// failedAll returns the answer to a set that failed in the store.
func (e *engine) failedAll(ctx context.Context, s *set, err error) (all Results, _ error) {
	fails := func(m FailMode) bool {
		return slices.ContainsFunc(s.groups, func(g *group) bool { return g.source.OnError == m })
	}
	switch {
	case s.alone || s.verb == verbReserveAll || !e.failsOpen(ctx, err) || fails(FailClosed):
		return all, err
	case fails(FailLocal):
		return e.decideAllLocal(ctx, s, err)
	}
	all = e.untaken(s, true, time.Time{})
	for i := range s.requests {
		if all.PerRequest[i].Source != SourceOverride {
			all.PerRequest[i] = e.degrade(ctx, &s.requests[i], err)
		}
	}
	return all, nil
}

// failsOpen reports whether FailOpen and FailLocal apply to an error.
func (e *engine) failsOpen(ctx context.Context, err error) bool {
	if e.tx || ctx.Err() != nil {
		return false
	}
	for _, other := range [...]error{store.ErrInvalid, store.ErrClosed, store.ErrOverloaded, store.ErrLocked, store.ErrAnswering, store.ErrStarved, store.ErrExhausted, store.ErrOwners} {
		if errors.Is(err, other) {
			return false
		}
	}
	return e.refusals.open(err)
}

// passesShadow reports whether a shadow policy turns an error of the store into a grant: not
// in a transaction, which has failed, and not if the caller is at fault or has left.
func (e *engine) passesShadow(ctx context.Context, err error) bool {
	return !e.tx && ctx.Err() == nil &&
		!errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrUnsupported) && !errors.Is(err, store.ErrClosed)
}

// degrade returns the answer of FailOpen, and that of a shadow policy without a decision.
func (e *engine) degrade(ctx context.Context, in *Request, err error) Result {
	why := "allowed without a decision: the policy fails open"
	if in.Policy.Shadow {
		why = "allowed without a decision: the policy is a shadow"
	}
	e.logDegraded(ctx, &in.Policy, why, err)
	r := undecided(in, SourceDegraded, e.clockTime())
	r.Allowed, r.Granted, r.Shadowed = true, in.Cost, in.Policy.Shadow
	return r
}

// logDegraded logs at most one warning every ten seconds.
func (e *engine) logDegraded(ctx context.Context, p *Policy, why string, err error) {
	if since, ok := e.degraded.Next(10 * time.Second); ok {
		e.logger.WarnContext(ctx, "pglimit: "+why, "policy", p.Name, "since_last", since, "error", err)
	}
}
