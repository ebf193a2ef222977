package bed

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
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

// FunctionCall returns the function call for a request to the limiter, with only those
// named arguments that the policy sets.
func FunctionCall(p limiter.Policy, op, key string, cost float64, now *time.Time) (string, []any) {
	return functionCall(p, op, key, cost, now, nil, 0)
}

// functionCall is FunctionCall with the end of a window instead of the period, and the
// seconds of a reservation, unless they are zero.
func functionCall(p limiter.Policy, op, key string, cost float64, now, endsAt *time.Time, ttl float64) (string, []any) {
	var names []string
	var args []any
	add := func(name string, value any) {
		args = append(args, value)
		names = append(names, fmt.Sprintf("%s => $%d", name, len(args)))
	}
	function := op + "_with"
	if op == "allow" {
		function = string(p.Algorithm)
	} else {
		add("algorithm", string(p.Algorithm))
	}
	add("name", p.Name)
	add("key", key)
	switch op {
	case "block":
		add("for_s", math.Round(cost*1e6)/1e6)
	case "unblock", "reset":
		now = nil // they read no clock
	default:
		add("cost", cost)
		add("limit_units", p.Limit)
		if endsAt != nil {
			p.Aligned = false
			add("ends_at", *endsAt)
		} else {
			add("period_s", p.Period.Seconds())
		}
		if ttl != 0 {
			add("ttl_s", ttl)
		}
		if p.Burst != 0 {
			add("burst", p.Burst)
		}
		if p.Tick != 0 {
			add("tick_s", p.Tick.Seconds())
		}
		if p.Aligned {
			add("aligned", true)
		}
		if p.BlockFor != 0 {
			add("block_for_s", p.BlockFor.Seconds())
		}
		if p.Shadow {
			add("shadow", true)
		}
	}
	if now != nil {
		add("now", *now)
	}
	return fmt.Sprintf("SELECT * FROM pglimit.%s(%s)", function, strings.Join(names, ", ")), args
}

// FunctionResult is a row of pglimit.result.
type FunctionResult struct {
	Allowed                           bool
	Granted, Remaining, Level         float64
	RetryAfterS, ResetAfterS, DelaysS *float64
	Reason                            *string
	Shadowed                          bool
}

// Result converts the row to a limiter.Result; fields that the row lacks are zero.
func (r FunctionResult) Result() limiter.Result {
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

// CallFunction sends by SQL the request that conformance.Do sends by Go.
func CallFunction(ctx context.Context, q Querier, p limiter.Policy, op, key string, cost float64, now *time.Time) (limiter.Result, error) {
	sql, args := FunctionCall(p, op, key, cost, now)
	return resultOf(ctx, q, op, sql, args)
}

// resultOf makes the call of a verb's function; some return nothing.
func resultOf(ctx context.Context, q Querier, op, sql string, args []any) (limiter.Result, error) {
	if op == "block" || op == "unblock" || op == "reset" {
		rows, err := q.Query(ctx, sql, args...)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		return limiter.Result{}, kindOf(err)
	}
	r, err := row[FunctionResult](ctx, q, sql, args...)
	return r.Result(), err
}

// Told returns a Result without the fields that Undo needs.
func Told(r limiter.Result) limiter.Result {
	return limiter.Result{
		Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst, Remaining: r.Remaining, Level: r.Level,
		RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Delay: r.Delay, Full: r.Full, Reason: r.Reason,
		Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed, Source: r.Source, At: r.At,
	}
}
