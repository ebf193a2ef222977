package allowall

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAllDecidesAsMemory compares AllowAll with the in-memory model over random
// histories of mixed algorithms. They have duplicates, requests above the burst, blocks,
// contradicting plans and single requests in between.
func TestAllowAllDecidesAsMemory(t *testing.T) {
	t.Parallel()
	var guessed guesses
	pool := bed.Connect(t, bed.NewDatabase(t), guessed.trace)
	t.Cleanup(func() { guessed.both(t) })
	over := func(config *limiter.Config) (*limiter.Limiter, error) {
		return limiter.New(pool, bed.WithPatience(config))
	}
	for _, mode := range []string{"outside", "inside", "both"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			allDecidesAsMemory(t, pool, mode, mode, over)
		})
	}
}

// TestAllowAllOverSQLDecidesAsMemory is the same over database/sql, where requests cannot
// be pipelined.
func TestAllowAllOverSQLDecidesAsMemory(t *testing.T) {
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		db := bed.ConnectSQL(t, driver, address)
		allDecidesAsMemory(t, pool, "outside", driver, func(config *limiter.Config) (*limiter.Limiter, error) {
			return limiter.NewSQL(db, bed.WithPatience(config))
		})
	})
}

func allDecidesAsMemory(t *testing.T, pool *pgxpool.Pool, mode, name string, over func(*limiter.Config) (*limiter.Limiter, error)) {
	histories := 0
	rapid.Check(t, func(rt *rapid.T) {
		histories++
		newAllHistory(rt, pool, fmt.Sprintf("%s-%d", name, histories), mode != "outside", over).run(rt, mode)
	})
}

// allHistory sends the same requests to the model and to a database.
type allHistory struct {
	pool            *pgxpool.Pool
	clock           *conformance.Clock
	at              int64
	inSQL, inMemory *limiter.Limiter
	policies        []limiter.Policy
	// In a transaction a denial brings rows up to date, as every other denial does.
	// Outside, it is rolled back, as in the model. The two differ if the clock is set
	// back, plans change or levels round, so these histories have none of that.
	plain bool
}

func newAllHistory(rt *rapid.T, pool *pgxpool.Pool, name string, plain bool, over func(*limiter.Config) (*limiter.Limiter, error)) *allHistory {
	h := &allHistory{pool: pool, clock: new(conformance.Clock), at: 1_000_000_000, plain: plain}
	h.inMemory = limiter.NewMemory(&limiter.Config{Now: h.clock.Now})
	var err error
	if h.inSQL, err = over(&limiter.Config{Now: h.clock.Now, DisableDenyCache: true}); err != nil {
		rt.Fatal(err)
	}
	for i := range rapid.IntRange(1, 4).Draw(rt, "policies") {
		p := rapid.SampledFrom(bed.Variants(8, 10*time.Second)).Draw(rt, "variant")
		plans := bed.DrawPlans(rt, p, fmt.Sprintf("%s-%d", name, i))
		if plain {
			plans = plans[:1]
			plans[0].Limit, plans[0].Burst = 8, 0
		}
		h.policies = append(h.policies, plans...)
	}
	return h
}

func (h *allHistory) run(rt *rapid.T, mode string) {
	for step := range 40 {
		delta := bed.DrawDelta(rt, h.policies[0])
		if h.plain {
			delta = max(0, delta)
		}
		h.at = max(0, h.at+delta)
		h.clock.Set(h.at)
		if rapid.IntRange(0, 3).Draw(rt, "single") == 0 {
			h.single(rt)
			continue
		}
		requests := make([]limiter.Request, rapid.IntRange(1, 6).Draw(rt, "requests"))
		for i := range requests {
			requests[i] = h.ask(rt)
		}
		inside := mode == "inside" || mode == "both" && rapid.Bool().Draw(rt, "inside")
		if inside && rapid.IntRange(0, 4).Draw(rt, "rolled back") == 0 {
			h.inside(rt, requests, pgx.Tx.Rollback)
			continue
		}
		want, wantErr := h.inMemory.AllowAll(context.Background(), requests...)
		var got limiter.Results
		var gotErr error
		if inside {
			got, gotErr = h.inside(rt, requests, pgx.Tx.Commit)
		} else {
			got, gotErr = h.inSQL.AllowAll(context.Background(), requests...)
		}
		if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			rt.Fatalf("step %d: SQL: %v, memory: %v", step, gotErr, wantErr)
		}
		for i := range want.PerRequest {
			want.PerRequest[i].Source = limiter.SourceDatabase
		}
		if h.plain && !alikeAll(got, want) || !h.plain && !reflect.DeepEqual(got, want) {
			rt.Fatalf("step %d at %d, inside: %v\nasks:   %+v\nSQL:    %+v\nmemory: %+v", step, h.at, inside, requests, got, want)
		}
	}
}

func (h *allHistory) ask(rt *rapid.T) limiter.Request {
	p := rapid.SampledFrom(h.policies).Draw(rt, "policy")
	key := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")
	if h.plain {
		return p.Request(key, bed.DrawShare(rt, p))
	}
	return p.Request(key, bed.DrawCost(rt, "allow", p))
}

func (h *allHistory) inside(rt *rapid.T, requests []limiter.Request, end func(pgx.Tx, context.Context) error) (limiter.Results, error) {
	ctx := context.Background()
	tx, err := h.pool.Begin(ctx)
	if err != nil {
		rt.Fatal(err)
	}
	all, allErr := h.inSQL.InTx(tx).AllowAll(ctx, requests...)
	if err := end(tx, ctx); err != nil {
		rt.Fatal(err)
	}
	return all, allErr
}

// single sends some other request to both in between.
func (h *allHistory) single(rt *rapid.T) {
	request := h.ask(rt)
	op := rapid.SampledFrom([]string{"allow", "charge", "block", "unblock", "reset"}).Draw(rt, "op")
	want, wantErr := conformance.Do(context.Background(), h.inMemory, request.Policy, op, request.Key, request.Cost)
	got, gotErr := conformance.Do(context.Background(), h.inSQL, request.Policy, op, request.Key, request.Cost)
	want.Source = got.Source
	if bed.Near(want.Granted, got.Granted) { // what a Charge adds is what the level leaves
		want.Granted = got.Granted
	}
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) || !bed.Alike(got, want) {
		rt.Fatalf("%s %+v at %d\nSQL:    %+v, %v\nmemory: %+v, %v", op, request, h.at, got, gotErr, want, wantErr)
	}
}

// alikeAll reports whether two answers are equal but for the rounding of levels.
func alikeAll(a, b limiter.Results) bool {
	if len(a.PerRequest) != len(b.PerRequest) {
		return false
	}
	for i := range a.PerRequest {
		if !bed.Alike(a.PerRequest[i], b.PerRequest[i]) {
			return false
		}
		a.PerRequest[i] = b.PerRequest[i]
	}
	return reflect.DeepEqual(a, b)
}
