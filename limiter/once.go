package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// once reports whether the set counts once, under the IdempotencyKey of its requests.
func (s *set) once() bool { return s.requests[0].IdempotencyKey != "" }

// oneOnce returns an error if the i-th request has another IdempotencyKey than the first.
func oneOnce(requests []Request, i int) error {
	if first, own := requests[0].IdempotencyKey, requests[i].IdempotencyKey; own != first {
		return store.Invalid(fmt.Sprintf("requests[%d].IdempotencyKey", i), store.Quote(own), "must be that of requests[0], "+store.Quote(first)+": all requests count once together")
	}
	return nil
}

// replayAll answers a set of which requests were admitted before under the IdempotencyKey.
func (e *engine) replayAll(ctx context.Context, s *set) (Results, error) {
	var at time.Time
	for _, g := range s.groups {
		before := g.Outcome.Before
		if before == nil {
			return Results{}, store.Invalid("IdempotencyKey", store.Quote(s.requests[0].IdempotencyKey), fmt.Sprintf("was used without requests[%d], for which nothing is remembered; use another key", g.Index))
		}
		at = time.UnixMicro(before.CreatedAt)
	}
	all := e.untaken(s, true, at)
	for _, g := range s.groups {
		r, err := replay(&call{verb: s.verb, request: s.requests[g.Index], op: store.Op{Query: g.Query}}, g.Outcome.Before, e.source)
		if err != nil {
			return Results{}, fmt.Errorf("requests[%d]: %w", g.Index, err)
		}
		r.rows = e.rows(len(s.groups), &store.Op{Rows: s.rows})
		all.PerRequest[g.Index] = r
	}
	return all, e.decideShadows(ctx, s, all.PerRequest)
}
