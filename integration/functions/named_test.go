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

// change is an override of a key, as a person would describe it; the zero value is none.
type change struct {
	limit, burst *float64
	shadow       *bool
	unlimited    bool
	until        *time.Time
}

// there reports whether the override is one, and has not ended.
func (c change) there(now time.Time) bool {
	return (c.unlimited || c.limit != nil || c.burst != nil || c.shadow != nil) && (c.until == nil || now.Before(*c.until))
}

// on returns the policy that an override leaves, and whether all passes.
func (c change) on(p limiter.Policy, now time.Time) (limiter.Policy, bool) {
	if !c.there(now) {
		return p, false
	}
	if c.limit != nil {
		p.Limit = *c.limit
	}
	if c.burst != nil {
		p.Burst = *c.burst
	}
	if c.shadow != nil {
		p.Shadow = *c.shadow
	}
	return p, c.unlimited
}

// store writes the override of keys.
func (c change) store(t testing.TB, pool *pgxpool.Pool, policy string, keys ...string) {
	t.Helper()
	for _, key := range keys {
		bed.Exec(t, pool, `DELETE FROM pglimit_override WHERE policy = $1 AND key = $2`, policy, key)
		if c.unlimited || c.limit != nil || c.burst != nil || c.shadow != nil {
			bed.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, limit_units, burst, shadow, unlimited, until) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
				policy, key, c.limit, c.burst, c.shadow, c.unlimited, c.until)
		}
	}
}

// drawChange returns an override, or none.
func drawChange(rt *rapid.T, p limiter.Policy, now time.Time) (c change) {
	number := func(what string) *float64 {
		n := min(1<<53, p.Limit*rapid.SampledFrom([]float64{0.5, 2, 4}).Draw(rt, what))
		return &n
	}
	bucket := !strings.Contains(string(p.Algorithm), "window")
	switch rapid.IntRange(0, 7).Draw(rt, "override") {
	case 0, 1:
		return c
	case 2:
		c.unlimited = true
	case 3:
		on := rapid.Bool().Draw(rt, "shadow")
		c.shadow = &on
	case 4:
		if bucket {
			c.burst = number("override's burst")
			break
		}
		fallthrough
	case 5:
		c.limit = number("override's limit")
		on := true
		c.shadow = &on
	default:
		c.limit = number("override's limit")
		if bucket && rapid.Bool().Draw(rt, "and burst") {
			c.burst = number("override's burst")
		}
	}
	if rapid.Bool().Draw(rt, "ends") {
		until := now.Add(rapid.SampledFrom([]time.Duration{-time.Hour, 0, time.Microsecond, 3 * time.Second}).Draw(rt, "until"))
		c.until = &until
	}
	return c
}

// passed is the answer to a request that nothing decides.
func passed(p limiter.Policy, cost float64) limiter.Result {
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	return limiter.Result{Allowed: true, Granted: cost, Remaining: burst}
}

// shadowed is what a shadow answers instead of a decision: it denies nothing, and reports
// what it would have denied.
func shadowed(p limiter.Policy, op string, r limiter.Result, cost float64) limiter.Result {
	if p.Algorithm == limiter.LeakyBucketQueue {
		r.Delay = 0
	}
	switch op {
	case "allow", "allow_up_to", "check", "reserve":
		if r.Allowed && r.Granted == cost {
			return r
		}
		r.Allowed, r.Granted, r.Shadowed = true, cost, true
	}
	return r
}

// held is a reservation made by Go, by SQL, and by either in turn.
type held struct {
	ids       [3]string
	uncounted bool // those by SQL
}

// TestFunctionsByNameDecideAsGo sends the same random requests to the library, under the
// policy that the override of the key leaves, and to the functions by name. Policies,
// overrides and shadows change meanwhile. All fields and rows are equal.
func TestFunctionsByNameDecideAsGo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.FunctionsPool(t)
	variants := bed.Variants(10, 10*time.Second)
	for _, calendar := range []limiter.Calendar{limiter.Hour, limiter.Month} {
		variants = append(variants, limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 10, Calendar: calendar, TimeZone: "Europe/Vienna"})
	}
	var histories, requests atomic.Int64
	for _, base := range variants {
		t.Run(bed.Variant(base)+string(base.Calendar), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			l := bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
			rapid.Check(t, func(rt *rapid.T) {
				plans := bed.DrawPlans(rt, base, fmt.Sprintf("n%d", histories.Add(1)))
				if base.Calendar != "" {
					plans = plans[:1] // another plan has a period
				}
				p := plans[0]
				store := func() { bed.StorePolicy(t, pool, p, false) }
				store()
				over := map[string]change{}
				var holds []held
				names := [3]string{"go ", "sql ", "both "}
				at := int64(1_000_000_000)
				for step := range 25 {
					if base.Calendar == "" {
						at = max(0, at+bed.DrawDelta(rt, p))
					} else {
						at = max(0, at+rapid.SampledFrom([]int64{0, 1, -5_000_000, 1_799_999_999, 3600_000_000, 11 * 3600_000_000, 6*24*3600_000_000 + 17}).Draw(rt, "move"))
					}
					clock.Set(at)
					now := clock.Now()
					key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
					switch rapid.IntRange(0, 9).Draw(rt, "change") {
					case 0:
						p = rapid.SampledFrom(plans).Draw(rt, "plan")
						p.Shadow = rapid.Bool().Draw(rt, "policy's shadow")
						store()
					case 1, 2:
						over[key] = drawChange(rt, p, now)
						over[key].store(t, pool, p.Name, "sql "+key, "both "+key)
					}
					effective, unlimited := over[key].on(p, now)
					raw := effective
					raw.Shadow = false // what it decides; the rest is compared with what is written here
					op := rapid.SampledFrom(append(bed.Operations(p.Algorithm), "reserve", "settle", "settle", "cancel")).Draw(rt, "op")
					if op == "reserve" && p.Algorithm == limiter.LeakyBucketQueue {
						continue
					}
					requests.Add(1)
					fail := func(who int, cost float64, got, want limiter.Result, err, wantErr error) {
						if (err == nil) != (wantErr == nil) || common(got) != common(want) {
							rt.Fatalf("step %d, key %s%s: %s %v at %d under %+v, override %+v\ngot:  %+v, %v\nwant: %+v, %v",
								step, names[who], key, op, cost, at, p, over[key], common(got), err, common(want), wantErr)
						}
					}
					if op == "settle" || op == "cancel" {
						if len(holds) == 0 {
							continue
						}
						h := rapid.SampledFrom(holds).Draw(rt, "reservation")
						units := rapid.SampledFrom([]float64{0, 1, 2.5, p.Limit}).Draw(rt, "settle units")
						want, wantErr := limiter.Result{Allowed: true}, error(nil)
						if op == "cancel" {
							want = limiter.Result{}
						}
						if !h.uncounted {
							want, wantErr = endByGo(ctx, l, op, h.ids[0], units)
						}
						for who := 1; who < 3; who++ {
							got, err := endBySQL(ctx, pool, op, h.ids[who], units, now)
							fail(who, units, got, want, err, wantErr)
						}
						continue
					}
					cost := bed.DrawCost(rt, op, effective)
					switch op {
					case "allow", "allow_up_to", "check", "reserve":
					default:
						unlimited = false // it is recorded, given back or done
					}
					if unlimited {
						want := passed(effective, cost)
						h := held{uncounted: true}
						for who := 1; who < 3; who++ {
							got, err := bed.CallNamed(ctx, pool, "pglimit", p.Name, op, names[who]+key, cost, &now)
							fail(who, cost, got.Result, want, err, nil)
							h.ids[who] = got.Reservation
						}
						if op == "reserve" {
							holds = append(holds, h)
						}
						continue
					}
					var h held
					want, wantErr := limiter.Result{}, error(nil)
					if op == "reserve" {
						made, err := l.Reserve(ctx, raw.Request("go "+key, cost), 3*time.Second)
						want, wantErr, h.ids[0] = made.Result, err, made.ID
					} else {
						want, wantErr = conformance.Do(ctx, l, raw, op, "go "+key, cost)
					}
					if wantErr == nil && effective.Shadow {
						want = shadowed(effective, op, want, cost)
					}
					for who := 1; who < 3; who++ {
						if who == 2 && op != "reserve" && !effective.Shadow && rapid.Bool().Draw(rt, "Go's turn") {
							got, err := conformance.Do(ctx, l, raw, op, "both "+key, cost)
							fail(who, cost, got, want, err, wantErr)
							continue
						}
						got, err := bed.CallNamed(ctx, pool, "pglimit", p.Name, op, names[who]+key, cost, &now)
						fail(who, cost, got.Result, want, err, wantErr)
						h.ids[who] = got.Reservation
						if op == "reserve" && err == nil && strings.HasPrefix(got.Reservation, "uncounted:") != want.Shadowed {
							rt.Fatalf("the reservation is %q, shadowed is %v", got.Reservation, want.Shadowed)
						}
					}
					if op == "reserve" && h.ids[1] != "" {
						h.uncounted = want.Shadowed
						holds = append(holds, h)
					}
				}
				all := []*asker{{keys: "go "}, {keys: "sql "}, {keys: "both "}}
				sameRows(rt, pool, "pglimit_"+string(base.Algorithm), p.Name, all)
				sameRows(rt, pool, "pglimit_reservation", p.Name, all)
			})
		})
	}
	t.Cleanup(func() {
		if n := requests.Load(); n < 100*int64(bed.Checks()) {
			t.Errorf("only %d requests", n)
		}
	})
}

// endByGo ends a reservation by the library.
func endByGo(ctx context.Context, l *limiter.Limiter, op, id string, units float64) (limiter.Result, error) {
	if op == "cancel" {
		return limiter.Result{}, l.Cancel(ctx, id)
	}
	return l.Settle(ctx, id, units)
}

// endBySQL ends a reservation by a function.
func endBySQL(ctx context.Context, pool *pgxpool.Pool, op, id string, units float64, now time.Time) (limiter.Result, error) {
	if op == "cancel" {
		_, err := pool.Exec(ctx, `SELECT pglimit.cancel($1, $2)`, id, now)
		return limiter.Result{}, err
	}
	rows, err := pool.Query(ctx, `SELECT * FROM pglimit.settle($1, $2, $3)`, id, units, now)
	if err != nil {
		return limiter.Result{}, err
	}
	settled, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[struct {
		bed.FunctionResult
		Replayed, Expired bool
	}])
	if err != nil {
		return limiter.Result{}, err
	}
	r := settled.Result()
	r.Replayed, r.Expired = settled.Replayed, settled.Expired
	return r, nil
}
