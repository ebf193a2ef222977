package limiter

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/turns"
)

// A shadow policy decides, counts, blocks and remembers denials as any other. Only its
// answer to the caller differs, so that its counts are those that it would have if it bit.

// shadow lets pass what a shadow policy denied or granted in part.
func (r *Result) shadow(v *verb, in *Request) {
	if v.requests && r.Source != SourceDegraded && (!r.Allowed || v == verbUpTo && r.Granted < in.Cost) {
		r.Allowed, r.Granted, r.Shadowed, r.grant = true, in.Cost, true, algorithm.Grant{}
	}
}

// shadows reports whether a shadow policy turns an error of the store into a grant: not in
// a transaction, which has failed, and not if the caller is at fault or has left.
func (e *engine) shadows(ctx context.Context, p *Policy, err error) bool {
	return p.Shadow && !e.tx && ctx.Err() == nil &&
		!errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrUnsupported) && !errors.Is(err, store.ErrClosed)
}

// errUncounted: there is no reservation to end, since a shadow policy let the Reserve pass.
var errUncounted = errors.New("pglimit: nothing was reserved")

// clockTime returns this process's time, by Config.Now if that is set.
func (s *shared) clockTime() time.Time {
	if s.clock != nil {
		return time.UnixMicro(s.clock().UnixMicro())
	}
	return time.UnixMicro(time.Now().UnixMicro())
}

// uncountedID returns the ID of a reservation for which nothing was counted.
func (e *engine) uncountedID(in *Request) string {
	return store.UncountedID(rand.Text(), in.Policy.Name, keys.Stored(in.Key, e.keySecret))
}

// apart returns the groups of policies that bite and those of shadow policies, both in lock
// order.
func apart(groups []*group) (bite, shadows []*group) {
	if !slices.ContainsFunc(groups, func(g *group) bool { return g.source.Shadow }) {
		return groups, nil
	}
	for _, g := range groups {
		if g.source.Shadow {
			shadows = append(shadows, g)
		} else {
			bite = append(bite, g)
		}
	}
	return bite, shadows
}

// skip marks the requests of shadow policies as not decided.
func (all *Results) skip(requests []Request, bite []*group) {
	for i, in := range requests {
		if in.Policy.Shadow {
			all.PerRequest[i] = Result{Limit: in.Policy.Limit, Burst: in.Policy.burst(), Source: SourceSkipped}
			if len(bite) > 0 {
				all.PerRequest[i].At = time.UnixMicro(bite[0].Outcome.Now)
			}
		}
	}
}

// decideShadows decides each request of a shadow policy by itself, after all others were
// granted. Outside a transaction none of them fails the whole, whose others are counted.
// After an error of the store the rest are not sent. rows has Observation.Rows of each
// request; it may be nil.
func (e *engine) decideShadows(ctx context.Context, requests []Request, shadows []*group, w *places, all *Results, rows []int) error {
	var away error
	for _, g := range shadows {
		for _, i := range g.indexes {
			in := &requests[i]
			if away != nil {
				all.PerRequest[i] = e.degrade(ctx, &store.Query{Units: in.Cost, Rules: g.Rules, Now: g.Now}, &in.Policy, away)
				continue
			}
			c := e.call(verbTake, *in)
			c.part = true
			if w != nil && in.Policy.Algorithm == LeakyBucketQueue {
				c.verb, c.within, c.turn = verbWait, w.within, turns.Turn{}
			}
			r, err := e.decide(ctx, c)
			switch {
			case err != nil && e.tx:
				return err
			case err != nil:
				away = err
				r = e.degrade(ctx, &store.Query{Units: in.Cost, Rules: g.Rules, Now: g.Now}, &in.Policy, err)
			case r.Source == SourceDegraded:
				away = c.failure
			default:
				if w != nil && r.Allowed && c.op.Outcome.View != nil { // not if an override has just made the key unlimited
					w.groups = append(w.groups, &group{
						Group: store.Group{Query: c.op.Query, Index: i, Outcome: c.op.Outcome}, source: in.Policy, key: in.Key, reused: c.turn,
					})
				}
				if rows != nil {
					rows[i] = c.op.Rows
				}
				r.shadow(c.verb, in)
			}
			all.PerRequest[i] = r
			e.put(c)
		}
	}
	return nil
}
