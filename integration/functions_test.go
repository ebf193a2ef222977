package integration

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// functionsPool is newPool with the SQL functions in the database.
func functionsPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := newPool(t)
	if err := migrations.UpFunctions(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// functionCall is the call of a function for what limiter is asked, with named
// arguments: only those that the policy has.
func functionCall(p limiter.Policy, op, key string, cost float64, now *time.Time) (string, []any) {
	var names []string
	var args []any
	add := func(name string, value any) {
		args = append(args, value)
		names = append(names, fmt.Sprintf("%s => $%d", name, len(args)))
	}
	function := op
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
		add("period_s", p.Period.Seconds())
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
	}
	if now != nil {
		add("now", *now)
	}
	return fmt.Sprintf("SELECT * FROM pglimit.%s(%s)", function, strings.Join(names, ", ")), args
}

// functionResult is a row of pglimit.result.
type functionResult struct {
	Allowed                           bool
	Granted, Remaining, Level         float64
	RetryAfterS, ResetAfterS, DelaysS *float64
	Reason                            *string
}

// result is what a Limiter would say; fields that the row has not are zero.
func (r functionResult) result() limiter.Result {
	all := limiter.Result{Allowed: r.Allowed, Granted: r.Granted, Remaining: r.Remaining, Level: r.Level,
		RetryAfter: seconds(r.RetryAfterS), ResetAfter: seconds(r.ResetAfterS), Delay: seconds(r.DelaysS)}
	if r.Reason != nil {
		all.Reason = limiter.Reason(*r.Reason)
	}
	return all
}

// seconds is exact to the microsecond; NULL is never.
func seconds(s *float64) time.Duration {
	if s == nil {
		return limiter.Never
	}
	return time.Duration(math.Round(*s*1e6)) * time.Microsecond
}

// callFunction asks by SQL what conformance.Do asks by Go.
func callFunction(ctx context.Context, q querier, p limiter.Policy, op, key string, cost float64, now *time.Time) (limiter.Result, error) {
	sql, args := functionCall(p, op, key, cost, now)
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return limiter.Result{}, err
	}
	if op == "block" || op == "unblock" || op == "reset" {
		rows.Close()
		return limiter.Result{}, rows.Err()
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[functionResult])
	if err != nil {
		return limiter.Result{}, err
	}
	return r.result(), nil
}

// common leaves of a Result what the functions tell too.
func common(r limiter.Result) limiter.Result {
	r.Limit, r.Burst, r.Full, r.Source, r.At = 0, 0, false, "", time.Time{}
	return r
}

// TestFunctionsDecideAsGo decides the same random asks by the library and by the
// functions, at the same times, and wants every field equal: on keys of their
// own, and taking turns on one key.
func TestFunctionsDecideAsGo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := functionsPool(t)
	var histories, asks atomic.Int64
	t.Cleanup(func() {
		if n := asks.Load(); n < 10_000 {
			t.Errorf("only %d asks", n)
		}
	})
	for _, base := range variants(10, 10*time.Second) {
		t.Run(variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			l := newLimiter(t, pool, &limiter.Config{Now: clock.Now, DenyCacheTTL: -1})
			rapid.Check(t, func(rt *rapid.T) {
				plans := drawPlans(rt, base, fmt.Sprintf("f%d", histories.Add(1)))
				at := int64(1_000_000_000)
				for step := range 25 {
					at = max(0, at+drawDelta(rt, plans[0]))
					clock.Set(at)
					now := clock.Now()
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					op := rapid.SampledFrom(ops(p.Algorithm)).Draw(rt, "op")
					key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
					cost := drawCost(rt, op, p)
					byGo := func(key string) (limiter.Result, error) { return conformance.Do(ctx, l, p, op, key, cost) }
					bySQL := func(key string) (limiter.Result, error) {
						return callFunction(ctx, pool, p, op, key, cost, &now)
					}
					want, wantErr := byGo(key) // an error where drawCost goes above 2^53
					turn := bySQL
					if rapid.Bool().Draw(rt, "Go's turn") {
						turn = byGo
					}
					asks.Add(1)
					for of, ask := range map[string]func(string) (limiter.Result, error){"sql": bySQL, "both": turn} {
						got, err := ask(of + key)
						if (err == nil) != (wantErr == nil) || common(got) != common(want) {
							rt.Fatalf("step %d, key of %s: %s %v at %d under %+v\ngot:  %+v, %v\nwant: %+v, %v",
								step, of, op, cost, at, p, common(got), err, common(want), wantErr)
						}
					}
				}
			})
		})
	}
}
