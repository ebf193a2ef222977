package testworld

import (
	"context"

	"github.com/pglimit/pglimit/limiter"
)

// allowAny asks pools by allow_any, or by the library.
func (f *Functions) allowAny(ctx context.Context, otherwise func(context.Context, ...limiter.Request) (limiter.Any, error), split bool, requests []limiter.Request) (limiter.Any, error) {
	in, takes := f.lists(requests)
	for _, one := range requests {
		takes = takes && one.Cost == requests[0].Cost
	}
	if !takes {
		return otherwise(ctx, requests...)
	}
	a := limiter.Any{GrantedBy: -1}
	answers, err := several[struct {
		Allowed     bool
		RetryAfterS *float64
		GrantedBy   *int
		Replayed    bool
		functionRow
	}](ctx, f.Q, `SELECT a.allowed, a.retry_after_s, a.granted_by, a.replayed, `+each+`
		FROM pglimit.allow_any($1, $2, $3, $4, $5, $6, $7) AS a, unnest(a.requests) AS r`, in.names, in.keys, requests[0].Cost, split, f.at(), in.floors, in.once)
	if err != nil {
		if in.once != nil {
			_, _ = otherwise(ctx, requests...)
		}
		return a, err
	}
	for _, one := range answers {
		if a.Allowed, a.RetryAfter = one.Allowed, Seconds(one.RetryAfterS); one.GrantedBy != nil {
			a.GrantedBy = *one.GrantedBy - 1
		}
		r := one.result()
		r.Replayed = one.Replayed && r.Granted > 0
		a.PerRequest = append(a.PerRequest, r)
	}
	return a, nil
}

// AllowAny leaves requests that allow_any does not take to the library.
func (f *Functions) AllowAny(ctx context.Context, requests ...limiter.Request) (limiter.Any, error) {
	return f.allowAny(ctx, f.Limiter.AllowAny, false, requests)
}

func (f *Functions) AllowAnySplit(ctx context.Context, requests ...limiter.Request) (limiter.Any, error) {
	return f.allowAny(ctx, f.Limiter.AllowAnySplit, true, requests)
}
