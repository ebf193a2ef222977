package testworld

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// allowAny asks pools by allow_any, or by the library.
func (f *Functions) allowAny(ctx context.Context, otherwise func(context.Context, ...limiter.Request) (limiter.Any, error), split bool, requests []limiter.Request) (limiter.Any, error) {
	policies := map[string]limiter.Policy{}
	var names, of []string
	var floors []float64
	for _, in := range requests {
		if p, known := policies[in.Policy.Name]; !f.ByName || known && p != in.Policy || in.Cost != requests[0].Cost {
			return otherwise(ctx, requests...)
		}
		policies[in.Policy.Name] = in.Policy
		names, of, floors = append(names, in.Policy.Name), append(of, in.Key), append(floors, in.Floor)
	}
	for _, p := range policies {
		f.Store(p)
	}
	type answer struct {
		Allowed     bool
		RetryAfterS *float64
		GrantedBy   *int
		functionRow
	}
	a := limiter.Any{GrantedBy: -1}
	rows, err := f.Q.Query(ctx, `SELECT a.allowed, a.retry_after_s, a.granted_by, coalesce(r.allowed, false), coalesce(r.granted, 0), coalesce(r.remaining, 0), coalesce(r.level, 0),
		r.retry_after_s, r.reset_after_s, r.delay_s, r.reason, coalesce(r.shadowed, false)
		FROM pglimit.allow_any($1, $2, $3, $4, $5, $6) AS a, unnest(a.requests) AS r`, names, of, requests[0].Cost, split, f.at(), floors)
	if err != nil {
		return a, kindOf(err)
	}
	answers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[answer])
	if err != nil {
		return a, kindOf(err)
	}
	for _, one := range answers {
		if a.Allowed, a.RetryAfter = one.Allowed, Seconds(one.RetryAfterS); one.GrantedBy != nil {
			a.GrantedBy = *one.GrantedBy - 1
		}
		a.PerRequest = append(a.PerRequest, one.result())
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
