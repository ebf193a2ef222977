package testworld

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// lists are the arguments of functions of several keys. once is their IdempotencyKey, or nil.
type lists struct {
	names, keys   []string
	costs, floors []float64
	once          *string
}

// lists stores the policies, and reports whether the functions take the requests: not if they name a
// key twice, two policies of one name, or several idempotency keys.
func (f *Functions) lists(requests []limiter.Request) (l lists, takes bool) {
	policies, keys := map[string]limiter.Policy{}, map[[2]string]bool{}
	for _, in := range requests {
		p, known := policies[in.Policy.Name]
		k := [2]string{in.Policy.Name, in.Key}
		if !f.ByName || in.IdempotencyKey != requests[0].IdempotencyKey || in.Estimate || known && p != in.Policy || keys[k] {
			return l, false
		}
		policies[in.Policy.Name], keys[k] = in.Policy, true
		l.names, l.keys = append(l.names, in.Policy.Name), append(l.keys, in.Key)
		l.costs, l.floors = append(l.costs, in.Cost), append(l.floors, in.Floor)
	}
	for _, p := range policies {
		f.Store(p)
	}
	if len(requests) > 0 && requests[0].IdempotencyKey != "" {
		l.once = &requests[0].IdempotencyKey
	}
	return l, len(requests) > 0
}

// each is the columns of each request's result, of the requests of a.
const each = `coalesce(r.allowed, false), coalesce(r.granted, 0), coalesce(r.remaining, 0), coalesce(r.level, 0), r.retry_after_s, r.reset_after_s, r.delay_s, r.reason, coalesce(r.shadowed, false)`

// several collects the rows of a function of several keys, one for each request.
func several[T any](ctx context.Context, q Querier, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, kindOf(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	return all, kindOf(err)
}

// AllowAll leaves requests that the function does not take to the library.
func (f *Functions) AllowAll(ctx context.Context, requests ...limiter.Request) (all limiter.Results, err error) {
	in, takes := f.lists(requests)
	if !takes {
		return f.Limiter.AllowAll(ctx, requests...)
	}
	answers, err := several[struct {
		Allowed     bool
		RetryAfterS *float64
		DelayS      float64
		DeniedBy    *int
		Replayed    bool
		functionRow
	}](ctx, f.Q, `SELECT a.allowed, a.retry_after_s, a.delay_s, a.denied_by, a.replayed, `+each+`
		FROM pglimit.allow_all($1, $2, $3, $4, $5, $6) AS a, unnest(a.requests) AS r`, in.names, in.keys, in.costs, f.at(), in.floors, in.once)
	if err != nil {
		if in.once != nil { // a rollback keeps what the function freed, and the library frees it
			_, _ = f.Limiter.AllowAll(ctx, requests...)
		}
		return all, err
	}
	all.DeniedBy = -1
	for i, a := range answers {
		if all.Allowed = a.Allowed; a.DeniedBy != nil {
			all.DeniedBy = *a.DeniedBy - 1
		}
		all.PerRequest = append(all.PerRequest, a.result())
		all.PerRequest[i].Replayed = a.Replayed && !requests[i].Policy.Shadow
	}
	var after, delay time.Duration
	for i, r := range all.PerRequest {
		if delay = max(delay, r.Delay); i == all.DeniedBy {
			after = r.RetryAfter
		}
	}
	if a := answers[0]; Seconds(a.RetryAfterS) != after || Seconds(&a.DelayS) != delay {
		return all, fmt.Errorf("retry after %v, delay %v, of %+v", Seconds(a.RetryAfterS), a.DelayS, all)
	}
	return all, nil
}

// ReserveAll leaves requests that the function does not take to the library.
func (f *Functions) ReserveAll(ctx context.Context, ttl time.Duration, requests ...limiter.Request) (made limiter.Reservations, err error) {
	made.Results.DeniedBy = -1
	in, takes := f.lists(requests)
	if !takes {
		return f.Limiter.ReserveAll(ctx, ttl, requests...)
	}
	answers, err := several[struct {
		Allowed  bool
		DeniedBy *int
		IDs      []string
		Expires  *time.Time
		Replayed bool
		functionRow
	}](ctx, f.Q, `SELECT a.allowed, a.denied_by, a.reservations, a.expires_at, a.replayed, `+each+`
		FROM pglimit.reserve_all($1, $2, $3, $4, $5, $6, $7) AS a, unnest(a.requests) AS r`, in.names, in.keys, in.costs, ttl.Seconds(), f.at(), in.floors, in.once)
	if err != nil && in.once != nil {
		_, _ = f.Limiter.ReserveAll(ctx, ttl, requests...)
	}
	for i, a := range answers {
		if made.Results.Allowed, made.IDs = a.Allowed, a.IDs; a.Expires != nil {
			made.ExpiresAt = *a.Expires
		}
		if a.DeniedBy != nil {
			made.Results.DeniedBy = *a.DeniedBy - 1
		}
		made.Results.PerRequest = append(made.Results.PerRequest, a.result())
		made.Results.PerRequest[i].Replayed = a.Replayed && !requests[i].Policy.Shadow
	}
	return made, err
}

func (f *Functions) SettleAll(ctx context.Context, ids []string, units ...float64) ([]limiter.Result, error) {
	settled, err := several[struct {
		functionRow
		Replayed, Expired bool
	}](ctx, f.Q, `SELECT * FROM pglimit.settle_all($1, $2, $3)`, ids, units, f.at())
	var all []limiter.Result
	for _, one := range settled {
		r := one.result()
		r.Replayed, r.Expired = one.Replayed, one.Expired
		all = append(all, r)
	}
	return all, err
}

func (f *Functions) CancelAll(ctx context.Context, ids ...string) error {
	return f.void(ctx, `pglimit.cancel_all($1, $2)`, ids, f.at())
}
