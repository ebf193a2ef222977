package testworld

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// OwnSchema describes the contents of schemas pglimit and pglimit_ask; empty if they do
// not exist.
func OwnSchema(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return Value[string](t, pool, `
		WITH own AS (SELECT oid, nspname FROM pg_namespace WHERE nspname IN ('pglimit', 'pglimit_ask'))
		SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
			SELECT format('schema %s', nspname) AS line FROM own
			UNION ALL SELECT format('function %s %s', p.oid::regprocedure, pg_get_functiondef(p.oid)) FROM pg_proc AS p JOIN own ON own.oid = p.pronamespace
			UNION ALL SELECT format('relation %s.%s', nspname, relname) FROM pg_class AS c JOIN own ON own.oid = c.relnamespace
		) AS all_of_it`)
}

// FunctionsPool is NewPool with the SQL functions in the database.
func FunctionsPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, inWorld(t, withFunctions(t).New(t)))
}

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// functionRow is a row of pglimit.result.
type functionRow struct {
	Allowed                           bool
	Granted, Remaining, Level         float64
	RetryAfterS, ResetAfterS, DelaysS *float64
	Reason                            *string
	Shadowed                          bool
}

// result converts the row to a limiter.Result; fields that the row lacks are zero.
func (r functionRow) result() limiter.Result {
	all := limiter.Result{Allowed: r.Allowed, Granted: r.Granted, Remaining: r.Remaining, Level: r.Level,
		RetryAfter: Seconds(r.RetryAfterS), ResetAfter: Seconds(r.ResetAfterS), Delay: Seconds(r.DelaysS), Shadowed: r.Shadowed}
	if r.Reason != nil {
		all.Reason = limiter.Reason(*r.Reason)
	}
	return all
}

// Seconds is exact to the microsecond; NULL means never.
func Seconds(s *float64) time.Duration {
	if s == nil {
		return limiter.Never
	}
	return time.Duration(math.Round(*s*1e6)) * time.Microsecond
}

// Told returns a Result without the fields that Undo needs.
func Told(r limiter.Result) limiter.Result {
	return limiter.Result{
		Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst, Remaining: r.Remaining, Level: r.Level,
		RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay, Full: r.Full, Reason: r.Reason,
		Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed, Source: r.Source, At: r.At,
	}
}

// StorePolicy writes a policy into the table pglimit_policy, from which the SQL functions
// read it by its name.
func StorePolicy(t testing.TB, pool *pgxpool.Pool, p limiter.Policy, askers bool) {
	t.Helper()
	Exec(t, pool, `DELETE FROM pglimit_policy WHERE name = $1`, p.Name)
	Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, burst, tick_s, block_for_s, aligned, calendar, time_zone, anchor, shadow, askers, lease, block_growth, block_max_s, max_keys, rest_limit, marks, overdraft, usage_by, usage_for_s)
		VALUES ($1, $2, $3, nullif($4::float8, 0::float8), nullif($5::float8, 0::float8), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`,
		p.Name, string(p.Algorithm), p.Limit, p.Period.Seconds(), p.Burst, p.Tick.Seconds(), p.BlockFor.Seconds(), p.Aligned, string(p.Calendar), p.TimeZone, p.Anchor, p.Shadow, askers, p.Lease, p.BlockGrowth, p.BlockMax.Seconds(), p.MaxKeys, p.RestLimit, p.Marks, p.Overdraft, string(p.UsageBy), p.UsageFor.Seconds())
}

// storeOverride writes an override of a key.
func storeOverride(t testing.TB, pool *pgxpool.Pool, o policies.Override) {
	t.Helper()
	Exec(t, pool, `INSERT INTO pglimit_override (policy, key, limit_units, burst, shadow, unlimited, until, factor, match, blocked, anchor)
		VALUES ($1, $2, $3, $4, $5, $6, nullif($7::timestamptz, '0001-01-01 00:00:00Z'::timestamptz), $8, $9, $10, $11)
		ON CONFLICT (policy, key, match) DO UPDATE SET limit_units = $3, burst = $4, shadow = $5, unlimited = $6, until = excluded.until, factor = $8, blocked = $10, anchor = $11`,
		o.Policy, o.Key, o.Limit, o.Burst, o.Shadow, o.Unlimited, o.Until, o.Factor, string(o.Match), o.Blocked, o.Anchor)
}
