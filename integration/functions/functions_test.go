package functions

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// common keeps the fields of a Result that the functions return too.
func common(r limiter.Result) limiter.Result {
	r = bed.Told(r)
	r.Limit, r.Burst, r.Full, r.Source, r.At = 0, 0, false, "", time.Time{}
	return r
}

// asker is one of the two ways to send requests, with its keys.
type asker struct {
	keys  string   // the prefix of its keys
	holds []string // in the order they were made
	do    func(h *asker, p limiter.Policy, op, key string, cost float64, hold int) (limiter.Result, error)
}

// byGo calls the library. For a reservation, cost is the units that settle it.
func byGo(l *limiter.Limiter) func(*asker, limiter.Policy, string, string, float64, int) (limiter.Result, error) {
	return func(h *asker, p limiter.Policy, op, key string, cost float64, hold int) (limiter.Result, error) {
		ctx := context.Background()
		switch op {
		case "reserve":
			made, err := l.Reserve(ctx, p.Request(h.keys+key, cost), 3*time.Second)
			if made.ID != "" {
				h.holds = append(h.holds, made.ID)
			}
			return made.Result, err
		case "settle", "cancel":
			return endByGo(ctx, l, op, h.holds[hold], cost)
		}
		return conformance.Do(ctx, l, p, op, h.keys+key, cost)
	}
}

// bySQL calls the functions at the clock's time.
func bySQL(pool *pgxpool.Pool, clock *conformance.Clock) func(*asker, limiter.Policy, string, string, float64, int) (limiter.Result, error) {
	return func(h *asker, p limiter.Policy, op, key string, cost float64, hold int) (limiter.Result, error) {
		ctx, now := context.Background(), clock.Now()
		switch op {
		case "reserve":
			sql, args := bed.FunctionCall(p, op, h.keys+key, cost, &now)
			rows, err := pool.Query(ctx, strings.Replace(sql, "(", "(ttl_s => 3, ", 1), args...)
			if err != nil {
				return limiter.Result{}, err
			}
			made, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[struct {
				bed.FunctionResult
				Reservation *string
				Expires     *time.Time
			}])
			if err != nil {
				return limiter.Result{}, err
			}
			if made.Reservation != nil {
				h.holds = append(h.holds, *made.Reservation)
			}
			if made.Allowed != (made.Reservation != nil) || made.Allowed != (made.Expires != nil) {
				return made.Result(), fmt.Errorf("hold %v, expires at %v", made.Reservation, made.Expires)
			}
			return made.Result(), nil
		case "settle", "cancel":
			return endBySQL(ctx, pool, op, h.holds[hold], cost, now)
		}
		return bed.CallFunction(ctx, pool, p, op, h.keys+key, cost, &now)
	}
}

// TestFunctionsDecideAsGo sends the same random requests to the library and to the
// functions, at the same times, and expects every field to be equal: on separate keys, and
// in turns on one key, where each also ends the other's reservations.
func TestFunctionsDecideAsGo(t *testing.T) {
	t.Parallel()
	pool := bed.FunctionsPool(t)
	var histories, requests atomic.Int64
	t.Cleanup(func() {
		if n := requests.Load(); n < 100*int64(bed.Checks()) {
			t.Errorf("only %d requests", n)
		}
	})
	for _, base := range bed.Variants(10, 10*time.Second) {
		t.Run(bed.Variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			goes, sql := byGo(bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})), bySQL(pool, clock)
			rapid.Check(t, func(rt *rapid.T) {
				plans := bed.DrawPlans(rt, base, fmt.Sprintf("f%d", histories.Add(1)))
				all := []*asker{{keys: "go ", do: goes}, {keys: "sql ", do: sql}, {keys: "both "}}
				at := int64(1_000_000_000)
				for step := range 25 {
					at = max(0, at+bed.DrawDelta(rt, plans[0]))
					clock.Set(at)
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					op := rapid.SampledFrom(append(bed.Operations(p.Algorithm), "reserve", "reserve", "settle", "settle", "cancel")).Draw(rt, "op")
					key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
					cost, hold := 0.0, 0
					if op == "settle" || op == "cancel" {
						if len(all[0].holds) == 0 {
							continue
						}
						hold = rapid.IntRange(0, len(all[0].holds)-1).Draw(rt, "hold")
						cost = rapid.SampledFrom([]float64{0, 1, 2.5, p.Limit / 10, p.Limit}).Draw(rt, "settle units")
					} else {
						cost = bed.DrawCost(rt, op, p)
					}
					all[2].do = sql
					if rapid.Bool().Draw(rt, "Go's turn") {
						all[2].do = goes
					}
					requests.Add(1)
					// An error if drawCost exceeds 2^53, and for reservations that have
					// ended.
					want, wantErr := all[0].do(all[0], p, op, key, cost, hold)
					for _, one := range all[1:] {
						got, err := one.do(one, p, op, key, cost, hold)
						if (err == nil) != (wantErr == nil) || common(got) != common(want) {
							rt.Fatalf("step %d, key %s%s: %s %v at %d under %+v\ngot:  %+v, %v\nwant: %+v, %v",
								step, one.keys, key, op, cost, at, p, common(got), err, common(want), wantErr)
						}
					}
				}
				sameRows(rt, pool, "pglimit_"+string(base.Algorithm), plans[0].Name, all)
				sameRows(rt, pool, "pglimit_reservation", plans[0].Name, all)
			})
		})
	}
}

// sameRows expects the askers' keys to have the same rows, including columns that the
// answers do not show, such as when a row may be deleted.
func sameRows(rt *rapid.T, pool *pgxpool.Pool, table, policy string, all []*asker) {
	rows, err := pool.Query(context.Background(), `SELECT split_part(t.key, ' ', 1) || ' ' AS keys,
			string_agg((to_jsonb(t) - 'key' - 'id' || jsonb_build_object('key', split_part(t.key, ' ', 2)))::text, E'\n'
			           ORDER BY (to_jsonb(t) - 'id' - 'key')::text, t.key)
		FROM `+table+` AS t WHERE t.policy = $1 GROUP BY 1`, policy)
	if err != nil {
		rt.Fatal(err)
	}
	held := map[string]string{}
	var keys, text string
	if _, err := pgx.ForEachRow(rows, []any{&keys, &text}, func() error { held[keys] = text; return nil }); err != nil {
		rt.Fatal(err)
	}
	for _, one := range all[1:] {
		if held[one.keys] != held[all[0].keys] {
			rt.Fatalf("%s of %s:\n%s\nof %s:\n%s", table, one.keys, held[one.keys], all[0].keys, held[all[0].keys])
		}
	}
}
