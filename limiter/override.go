package limiter

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// SourceOverride: nowhere. An override makes the key Unlimited. Nothing was counted. Remaining is the burst, and Level and ResetAfter are 0.
const SourceOverride Source = "override"

// override applies the override of a request's key to its policy. It reports whether the
// key is unlimited for v.
func (e *engine) override(v *verb, in *Request) (unlimited bool) {
	if e.policies == nil {
		return false
	}
	p := e.policies
	return p.state.Load().override(&in.Policy, in.Key, p.config.KeySecret, e.clockTime) && v.requests
}

// passUnlimited returns the answer to a call for an unlimited key, which must be valid like
// any other.
func (e *engine) passUnlimited(ctx context.Context, c *call) (Result, error) {
	if err := e.compile(c); err != nil {
		return Result{}, err
	}
	if ctx.Err() != nil {
		return Result{}, store.EndedContext(ctx)
	}
	return e.passed(&c.request), nil
}

// passed returns the answer to a valid request for an unlimited key.
func (e *engine) passed(in *Request) Result {
	return Result{
		Allowed: true, Granted: in.Cost, Limit: in.Policy.Limit, Burst: in.Policy.burst(), Remaining: in.Policy.burst(),
		Source: SourceOverride, At: e.clockTime(),
	}
}

// overrideAll applies the overrides to the requests of an AllowAll. It returns a copy if any
// is overridden, and the indexes of the requests for unlimited keys.
func (e *engine) overrideAll(requests []Request) (effective []Request, free []int) {
	if e.policies == nil {
		return requests, nil
	}
	// All requests are decided by one state of the policies, at one time.
	state, at := e.policies.state.Load(), time.Time{}
	now := func() time.Time {
		if at.IsZero() {
			at = e.clockTime()
		}
		return at
	}
	effective = requests
	for i := range requests {
		in := requests[i]
		unlimited := state.override(&in.Policy, in.Key, e.policies.config.KeySecret, now)
		if in.Policy != requests[i].Policy {
			if &effective[0] == &requests[0] {
				effective = slices.Clone(requests)
			}
			effective[i] = in
		}
		if unlimited {
			free = append(free, i)
		}
	}
	return effective, free
}

// decideLimited is decideAll of the requests that are not free. The free ones are granted if
// the whole is.
func (e *engine) decideLimited(ctx context.Context, requests []Request, free []int, w *places, rows []int) (Results, error) {
	if len(free) == 0 {
		return e.decideAll(ctx, requests, w, rows)
	}
	if e.closed.Load() {
		return Results{DeniedBy: -1}, store.ErrClosed
	}
	if _, err := e.groups(requests); err != nil { // all must be valid, and errors have their indexes
		return Results{DeniedBy: -1}, err
	}
	all := Results{Allowed: true, DeniedBy: -1, PerRequest: make([]Result, len(requests))}
	limited, indexes := make([]Request, 0, len(requests)), make([]int, 0, len(requests))
	for i := range requests {
		if slices.Contains(free, i) {
			all.PerRequest[i] = e.passed(&requests[i])
			continue
		}
		limited, indexes = append(limited, requests[i]), append(indexes, i)
	}
	switch {
	case len(limited) > 0:
	case ctx.Err() != nil:
		return Results{DeniedBy: -1}, store.EndedContext(ctx)
	default:
		return all, nil
	}
	var some []int // rows of the limited
	if rows != nil {
		some = make([]int, len(limited))
	}
	decided, err := e.decideAll(ctx, limited, w, some)
	if err != nil {
		return decided, err
	}
	for i, index := range indexes {
		all.PerRequest[index] = decided.PerRequest[i]
		if rows != nil {
			rows[index] = some[i]
		}
	}
	if all.Allowed = decided.Allowed; !all.Allowed {
		if decided.DeniedBy >= 0 {
			all.DeniedBy = indexes[decided.DeniedBy]
		}
		for _, i := range free {
			all.PerRequest[i].Granted = 0
		}
	}
	return all, nil
}
