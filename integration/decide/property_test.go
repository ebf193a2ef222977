package decide

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideAsMemory compares the statements, over each driver, with the in-memory model,
// result by result and to the last bit: 100 random histories of 100 steps for each
// variant, in and out of the caller's transaction, of all verbs, mixed costs, idempotency
// keys, plans that change under one name, and a clock that jumps back.
func TestDecideAsMemory(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	var dbs []*sql.DB
	for _, driver := range bed.SQLDrivers {
		dbs = append(dbs, bed.ConnectSQL(t, driver, address))
	}
	var histories atomic.Int64
	for _, base := range bed.Variants(10, 10*time.Second) {
		t.Run(bed.Variant(base), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			clock := new(conformance.Clock)
			config := &limiter.Config{Now: clock.Now, DisableDenyCache: true, Timeout: time.Minute}
			all := []*limiter.Limiter{bed.NewLimiter(t, pool, config)}
			for _, db := range dbs {
				all = append(all, bed.NewSQL(t, db, config))
			}
			rapid.Check(t, func(rt *rapid.T) {
				model := limiter.NewMemory(config)
				plans := bed.DrawPlans(rt, base, fmt.Sprintf("p%d", histories.Add(1)))
				var past past
				var trace []string
				at := int64(1_000_000_000)
				for range 100 {
					at = max(0, at+bed.DrawDelta(rt, plans[0]))
					clock.Set(at)
					alone := rapid.SampledFrom(all).Draw(rt, "limiter") // they share the rows
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					h := step{p: p, at: at, where: "alone", past: &past}
					h.draw(rt)
					inSQL, commit := limiter.Decider(alone), func() error { return nil }
					// A Check in a transaction gives no expired reservation back.
					if rapid.IntRange(0, 3).Draw(rt, "in a transaction") == 0 && h.op != "check" {
						tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
						if err != nil {
							rt.Fatal(err)
						}
						defer func() { _ = tx.Rollback(ctx) }() // if the step fails
						inSQL, commit, h.where = alone.InTx(tx), func() error { return tx.Commit(ctx) }, "in a transaction"
					}
					trace = append(trace, h.String())
					want, wantErr := h.run(ctx, model, 0)
					got, gotErr := h.run(ctx, inSQL, 1)
					if err := commit(); err != nil && gotErr == nil {
						rt.Fatal(err)
					}
					if !sameError(gotErr, wantErr) {
						rt.Fatalf("%s\nSQL: %v\nmemory: %v", strings.Join(trace, "\n"), gotErr, wantErr)
					}
					if h.op != "reserve" {
						past.answers = append(past.answers, [2]limiter.Result{want, got})
					}
					want.Source = got.Source
					if got != want {
						rt.Fatalf("%s\nSQL:    %+v\nmemory: %+v", strings.Join(trace, "\n"), got, want)
					}
				}
			})
		})
	}
}

// past is the reservations and answers of both sides.
type past struct {
	holds   [][2]string
	answers [][2]limiter.Result
}

// step is one step of a history.
type step struct {
	p     limiter.Policy
	at    int64
	op    string
	key   string
	again string // the idempotency key
	cost  float64
	ttl   time.Duration
	which int
	where string
	*past
}

func (h *step) String() string {
	return fmt.Sprintf("%d %s %s %v again=%q ttl=%v which=%d limit=%v/%v block=%v %v", h.at, h.op, h.key, h.cost, h.again, h.ttl, h.which, h.p.Limit, h.p.Period, h.p.BlockFor, h.where)
}

func (h *step) draw(rt *rapid.T) {
	ops := append(bed.Operations(h.p.Algorithm), "do", "do")
	if h.p.Algorithm != limiter.LeakyBucketQueue {
		ops = append(ops, "undo", "reserve", "reserve", "reserve", "settle", "settle", "cancel")
	}
	h.op = rapid.SampledFrom(ops).Draw(rt, "op")
	h.key = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
	h.again = rapid.SampledFrom([]string{"", "", "", "1", "2", "3"}).Draw(rt, "idempotency")
	h.ttl = rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, time.Hour}).Draw(rt, "ttl")
	holds, answers := len(h.holds), len(h.answers)
	switch {
	case h.op == "undo" && answers > 0:
		h.which = rapid.IntRange(max(0, answers-5), answers-1).Draw(rt, "undone")
	case h.op == "undo":
		h.op = "allow"
	case h.op != "settle" && h.op != "cancel":
	case holds > 0:
		h.which = rapid.IntRange(0, holds-1).Draw(rt, "hold")
	default:
		h.op = "reserve"
	}
	h.cost = bed.DrawCost(rt, h.op, h.p)
	if h.op == "settle" && rapid.IntRange(0, 2).Draw(rt, "above") > 0 {
		h.cost /= 2 // below what was reserved, half of the time
	}
}

// run takes the step on one side: 0 is memory, 1 is SQL.
func (h *step) run(ctx context.Context, l limiter.Decider, side int) (limiter.Result, error) {
	request := h.p.Request(h.key, h.cost)
	request.IdempotencyKey = h.again
	switch h.op {
	case "do":
		return l.Do(ctx, request)
	case "undo":
		return l.Undo(ctx, h.p, h.key, h.answers[h.which][side])
	case "settle":
		return l.Settle(ctx, h.holds[h.which][side], h.cost)
	case "cancel":
		return limiter.Result{}, l.Cancel(ctx, h.holds[h.which][side])
	case "reserve":
	default:
		return conformance.Do(ctx, l, h.p, h.op, h.key, h.cost)
	}
	hold, err := l.Reserve(ctx, request, h.ttl)
	if err != nil || !hold.Result.Allowed {
		return hold.Result, err
	}
	r := hold.Result
	r.At = hold.Expires // compared as well
	if r.Replayed {
		return r, nil
	}
	if side == 0 {
		h.holds = append(h.holds, [2]string{})
	}
	if n := len(h.holds); n > 0 {
		h.holds[n-1][side] = hold.ID
	}
	return r, nil
}

func sameError(a, b error) bool {
	for _, known := range []error{limiter.ErrInvalid, limiter.ErrNoReservation, limiter.ErrReservationEnded} {
		if errors.Is(a, known) != errors.Is(b, known) {
			return false
		}
	}
	return (a == nil) == (b == nil)
}
