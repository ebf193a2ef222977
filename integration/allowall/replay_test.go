package allowall

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// sevens are requests for 7 units of a key of each policy but queues, under one IdempotencyKey.
func sevens(policies []limiter.Policy, key string) (all []limiter.Request) {
	for _, p := range policies {
		request := p.Request(key, 7)
		request.IdempotencyKey = "order 1"
		if p.Algorithm != limiter.LeakyBucketQueue {
			all = append(all, request)
		}
	}
	return all
}

// manners are the methods for several keys that take an IdempotencyKey, as calls of one form. An
// AllowAny asks three pools, of which the first has no room.
func manners(policies []limiter.Policy) map[string]func(context.Context, verbs.Limiter, string) (limiter.Results, error) {
	pools := func(key string) []limiter.Request {
		all := sevens(policies, key)
		all[0].Policy.Name, all[0].Policy.Limit = "small", 4
		return all[:3]
	}
	anyOf := func(a limiter.Any, err error) (limiter.Results, error) {
		all := limiter.Results{Allowed: a.Allowed}
		for _, r := range a.PerRequest {
			if r.Granted > 0 {
				all.PerRequest = append(all.PerRequest, r)
			}
		}
		return all, err
	}
	return map[string]func(context.Context, verbs.Limiter, string) (limiter.Results, error){
		"all": func(ctx context.Context, d verbs.Limiter, key string) (limiter.Results, error) {
			return d.AllowAll(ctx, sevens(policies, key)...)
		},
		"reserve": func(ctx context.Context, d verbs.Limiter, key string) (limiter.Results, error) {
			all, err := d.ReserveAll(ctx, time.Hour, sevens(policies, key)...)
			return all.Results, err
		},
		"any": func(ctx context.Context, d verbs.Limiter, key string) (limiter.Results, error) {
			return anyOf(d.AllowAny(ctx, pools(key)...))
		},
		"split": func(ctx context.Context, d verbs.Limiter, key string) (limiter.Results, error) {
			return anyOf(d.AllowAnySplit(ctx, pools(key)...))
		},
	}
}

// counted returns what a key has in use under all policies.
func counted(t *testing.T, l *limiter.Limiter, policies []limiter.Policy, key string) (sum float64) {
	t.Helper()
	small := policies[0]
	small.Name, small.Limit = "small", 4
	for _, p := range append([]limiter.Policy{small}, policies...) {
		sum += testworld.Level(t, l, p, key)
	}
	return sum
}

// TestAllowAllOnceCountsOnce: of requests for several keys under one IdempotencyKey at once, from
// the pool and in transactions of every isolation, one counts, and all others get its answer.
func TestAllowAllOnceCountsOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.Connections(16))
	l := testworld.NewLimiter(t, pool, nil)
	policies := testworld.Variants(100, 1000*time.Hour)
	for what, ask := range manners(policies) {
		for _, iso := range []pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			key := what + string(iso)
			var mu sync.Mutex
			fresh, units := 0, map[float64]int{}
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					all, err := limiter.Results{}, errors.New("not yet")
					for err != nil {
						if iso == "" || i%2 == 0 {
							all, err = ask(ctx, l, key)
						} else {
							err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: iso}, func(tx pgx.Tx) (err error) {
								if _, err = tx.Exec(ctx, "SELECT 1"); err == nil {
									all, err = ask(ctx, l.InTx(tx), key)
								}
								return err
							})
						}
						var state *pgconn.PgError
						if err != nil && !errors.Is(err, limiter.ErrRetryTx) && (!errors.As(err, &state) || state.Code != "40001") {
							t.Errorf("%s: %v", key, err)
							return
						}
					}
					mu.Lock()
					defer mu.Unlock()
					sum := 0.0
					for _, r := range all.PerRequest {
						sum += r.Granted
						if r.Replayed != all.PerRequest[0].Replayed {
							t.Errorf("%s: %+v", key, all)
						}
					}
					if units[sum]++; !all.PerRequest[0].Replayed {
						fresh++
					}
				})
			}
			wg.Wait()
			want := 7.0
			if what == "all" || what == "reserve" {
				want *= float64(len(sevens(policies, key)))
			}
			if got := counted(t, l, policies, key); fresh != 1 || len(units) != 1 || !testworld.Near(got, want) {
				t.Errorf("%s: %v units, %d fresh answers, %v in use, want %v once", key, units, fresh, got, want)
			}
		}
	}
	pool.Close() // sessions report their counters when they end
}

// TestAllowAllOnceTwins: of two requests under one IdempotencyKey, of which the second waits in a
// transaction for the first to commit, and which leave no room, the second gets the answer of the
// first. It keeps no block of a denial that is none.
func TestAllowAllOnceTwins(t *testing.T) {
	t.Parallel()
	ctx, address := t.Context(), testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, pool, nil)
	for i, w := range testworld.Ways(t, address, false) {
		for _, blockFor := range []time.Duration{0, time.Hour} {
			policies := testworld.Variants(10, 1000*time.Hour)
			for i := range policies {
				policies[i].Burst, policies[i].BlockFor = 0, blockFor
			}
			for what, ask := range manners(policies) {
				key := fmt.Sprint(what, i, blockFor)
				tx := testworld.Begin(t, pool, pgx.TxOptions{})
				first, err := ask(ctx, l.InTx(tx), key)
				if err != nil || !first.Allowed {
					t.Fatalf("%s: %+v, %v", key, first, err)
				}
				done := make(chan error, 1)
				var second limiter.Results
				go func() {
					other, err := w.Begin(ctx)
					if err == nil {
						second, err = ask(ctx, other.Tx, key)
						err = errors.Join(err, other.Close(ctx, err == nil))
					}
					done <- err
				}()
				testworld.AwaitLongWait(t, pool, func() bool { return len(done) > 0 })
				testworld.Commit(t, tx)
				if err := testworld.Receive(t, done, "the second answer"); err != nil || !second.Allowed || !second.PerRequest[0].Replayed {
					t.Errorf("%s: %+v, %v", key, second, err)
				}
				for _, in := range sevens(policies, key) {
					if r := testworld.Must(t)(l.Check(ctx, in.Policy, key, 1)); !r.Allowed {
						t.Errorf("%s: %s is left with %+v", key, testworld.Variant(in.Policy), r)
					}
				}
				want := 7.0
				if what == "all" || what == "reserve" {
					want *= float64(len(sevens(policies, key)))
				}
				if got := counted(t, l, policies, key); !testworld.Near(got, want) {
					t.Errorf("%s: %v in use, want %v", key, got, want)
				}
			}
		}
	}
}

// TestAllowAllOnceALostAnswer: a request for several keys whose answer was lost, wherever that was
// cut off, and that is sent again until it is answered, counts once.
func TestAllowAllOnceALostAnswer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := testworld.NewWire(t, testworld.NewDatabase(t))
	l := testworld.NewLimiter(t, testworld.Connect(t, w.URL), &limiter.Config{Timeout: time.Minute, BreakAfter: 1000})
	policies := testworld.Variants(100, 1000*time.Hour)
	for what, ask := range manners(policies) {
		for _, cut := range []string{"COMMIT", "SELECT 1", "INSERT 0 1", "BEGIN"} { // tags of answers
			key := what + cut
			w.LoseAnswer(cut)
			lost := 0
			for again := 0; again < 2; {
				all, err := ask(ctx, l, key)
				switch {
				case err == nil && all.Allowed:
					again++
				case errors.Is(err, limiter.ErrUnavailable) && lost < 3:
					lost++
				default:
					t.Fatalf("%s: %+v, %v", key, all, err)
				}
			}
			want := 7.0
			if what == "all" || what == "reserve" {
				want *= float64(len(sevens(policies, key)))
			}
			if got := counted(t, l, policies, key); !testworld.Near(got, want) {
				t.Errorf("%s: %v in use, want %v", key, got, want)
			}
			t.Logf("%s: %d answers were lost", key, lost)
		}
	}
}
