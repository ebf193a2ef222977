package reserve

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

// pair is one reservation under the names of both sides.
type pair struct{ inSQL, inMemory string }

// TestReserveDecidesAsMemory compares Reserve, Settle, Cancel, expiry and idempotency keys
// with the in-memory model, to the last bit, for each algorithm, in and out of the
// caller's transaction.
func TestReserveDecidesAsMemory(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	dbs := []*sql.DB{bed.ConnectSQL(t, "pgx", address), bed.ConnectSQL(t, "postgres", address)}
	var histories atomic.Int64
	for _, base := range bed.Variants(10, 10*time.Second) {
		if base.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		t.Run(bed.Variant(base), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			clock := new(conformance.Clock)
			config := limiter.Config{Now: clock.Now, DisableDenyCache: true}
			overSQL := config
			overSQL.Timeout = time.Minute
			all := []*limiter.Limiter{bed.NewLimiter(t, pool, &config), bed.NewSQL(t, dbs[0], &overSQL), bed.NewSQL(t, dbs[1], &overSQL)}
			rapid.Check(t, func(rt *rapid.T) {
				model := limiter.NewMemory(&config)
				plans := bed.DrawPlans(rt, base, fmt.Sprintf("p%d", histories.Add(1)))
				var holds []pair
				var trace []string
				at := int64(1_000_000_000)
				for range 60 {
					at = max(0, at+bed.DrawDelta(rt, plans[0]))
					clock.Set(at)
					alone := rapid.SampledFrom(all).Draw(rt, "limiter") // they share the rows
					p := rapid.SampledFrom(plans).Draw(rt, "plan")
					h := reserveStep{p: p, at: at, where: "alone", reservations: &holds}
					h.draw(rt)
					inSQL, commit := bed.ReservationVerbs(alone), func() error { return nil }
					// A Check in a transaction gives no expired reservation back.
					if rapid.IntRange(0, 3).Draw(rt, "in a transaction") == 0 && h.op != "check" {
						tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
						if err != nil {
							rt.Fatal(err)
						}
						defer func() { _ = tx.Rollback(ctx) }() // if the step fails
						inSQL, commit, h.where = alone.InTx(tx), func() error { return tx.Commit(ctx) }, "in a transaction"
					}
					trace = append(trace, h.String())
					want, wantErr := h.run(ctx, model, func(p *pair) *string { return &p.inMemory })
					got, gotErr := h.run(ctx, inSQL, func(p *pair) *string { return &p.inSQL })
					if err := commit(); err != nil && gotErr == nil {
						rt.Fatal(err)
					}
					if !sameError(gotErr, wantErr) {
						rt.Fatalf("%s\nSQL: %v\nmemory: %v", strings.Join(trace, "\n"), gotErr, wantErr)
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

// holdStep is one step of a history.
type reserveStep struct {
	p            limiter.Policy
	at           int64
	op           string
	key          string
	again        string // the idempotency key
	cost         float64
	ttl          time.Duration
	which        int
	where        string
	reservations *[]pair
}

func (h *reserveStep) String() string {
	return fmt.Sprintf("%d %s %s %v again=%q ttl=%v hold=%d limit=%v/%v block=%v %v", h.at, h.op, h.key, h.cost, h.again, h.ttl, h.which, h.p.Limit, h.p.Period, h.p.BlockFor, h.where)
}

func (h *reserveStep) draw(rt *rapid.T) {
	ops := []string{"do", "do", "check", "refund", "fill", "reset", "reserve", "reserve", "reserve", "settle", "settle", "cancel"}
	h.op = rapid.SampledFrom(ops).Draw(rt, "op")
	h.key = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
	h.cost = bed.DrawCost(rt, "allow", h.p)
	h.again = rapid.SampledFrom([]string{"", "", "", "1", "2", "3"}).Draw(rt, "idempotency")
	h.ttl = rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, time.Hour}).Draw(rt, "ttl")
	if n := len(*h.reservations); n > 0 {
		h.which = rapid.IntRange(0, n-1).Draw(rt, "hold")
	} else if h.op == "settle" || h.op == "cancel" {
		h.op = "reserve"
	}
	if h.op == "settle" && rapid.IntRange(0, 2).Draw(rt, "above") > 0 {
		h.cost /= 2 // below what was reserved, half of the time
	}
}

// run takes the step on one side; id returns that side's name of a reservation.
func (h *reserveStep) run(ctx context.Context, l bed.ReservationVerbs, id func(*pair) *string) (limiter.Result, error) {
	request := h.p.Request(h.key, h.cost)
	request.IdempotencyKey = h.again
	switch h.op {
	case "do":
		return l.Do(ctx, request)
	case "check":
		return l.Check(ctx, h.p, h.key, h.cost)
	case "refund":
		return l.Refund(ctx, h.p, h.key, h.cost)
	case "fill":
		return l.Charge(ctx, h.p, h.key, h.cost)
	case "reset":
		return limiter.Result{}, l.Reset(ctx, h.p, h.key)
	case "settle":
		return l.Settle(ctx, *id(&(*h.reservations)[h.which]), h.cost)
	case "cancel":
		return limiter.Result{}, l.Cancel(ctx, *id(&(*h.reservations)[h.which]))
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
	for i := range *h.reservations { // the other side was first
		if p := &(*h.reservations)[i]; *id(p) == "" {
			*id(p) = hold.ID
			return r, nil
		}
	}
	*h.reservations = append(*h.reservations, pair{})
	*id(&(*h.reservations)[len(*h.reservations)-1]) = hold.ID
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
