package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// routed returns config for a limiter behind a router.
func routed(config *limiter.Config) *limiter.Config {
	config.Sharding = limiter.ShardingRouter
	return config
}

// TestRouterDecidesAsMemory: behind a router each verb decides as a limiter in memory. Of one
// key, AllowAll and transactions do too.
func TestRouterDecidesAsMemory(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]search.Draw{
		"keys":     {Equal: true, Keys: 3, Operations: search.Without(search.Usual, "sweep", "all", "any", "split", "begin", "commit", "rollback")},
		"one key":  {Equal: true, Keys: 1, Names: 3, Plain: true, Operations: search.Without(search.Usual, "sweep") + strings.Repeat(" all", 12)},
		"attempts": {Equal: true, Keys: 3, Operations: search.Without(search.Attempts, "sweep", "begin", "commit", "rollback")},
		"slots":    {Equal: true, Keys: 3, Operations: search.Without(search.Slots, "sweep", "begin", "commit", "rollback")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bases := search.Variants(10, 10*time.Second)
			switch name {
			case "attempts":
				bases = []limiter.Policy{{Algorithm: limiter.Attempts, Limit: 1, Period: 10 * time.Second, BlockFor: time.Second}}
			case "slots":
				bases = []limiter.Policy{{Algorithm: limiter.Concurrency, Limit: 1, Period: 10 * time.Second}}
			}
			p := newProxy(t)
			pool := testworld.Connect(t, p.address)
			if d.Keys == 1 { // the histories' key has one server, and this one the other
				fill(t, pool)
			}
			over := testworld.ConnectSQL(t, testworld.SQLDrivers[0], p.address)
			testworld.Search(t, d, 6, func(t *testing.T) func(*search.History) search.Subject {
				return func(*search.History) search.Subject {
					s, config := testworld.NewSubject(t)
					s.Ways = search.By(testworld.NewLimiter(t, pool, routed(config)), testworld.NewSQL(t, over, config))
					if d.Keys == 1 {
						s.Begin, s.Alike = pool.Begin, search.Rounded
					}
					return s
				}
			}, bases...)
		})
	}
}

// fill makes rows on both servers.
func fill(t *testing.T, pool *pgxpool.Pool) {
	l := testworld.NewLimiter(t, pool, routed(&limiter.Config{}))
	for i := range 16 {
		testworld.Must(t)(l.Allow(t.Context(), limiter.PerMinute("fill", 1), fmt.Sprint(i)))
	}
}

// TestRouterKeepsTheBound: of many callers of many keys each key admits what its limit says,
// and those of one key share statements.
func TestRouterKeepsTheBound(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	var shared atomic.Int64
	l := testworld.NewLimiter(t, testworld.Connect(t, p.address, testworld.Connections(8)), routed(&limiter.Config{DisableDenyCache: true, DisableTimeout: true, Observe: func(_ context.Context, o limiter.Observation) {
		if o.Rows > 1 {
			shared.Add(1)
		}
	}}))
	const keys, limit, callers, each = 6, 10, 16, 12
	var policies []limiter.Policy
	for _, a := range limiter.Algorithms() {
		policies = append(policies, limiter.Policy{Name: string(a), Algorithm: a, Limit: limit, Burst: limit, Period: 100 * time.Hour})
	}
	for i := range policies {
		if strings.Contains(policies[i].Name, "window") {
			policies[i].Burst = 0
		}
	}
	blocks := policies[2]
	blocks.Name, blocks.BlockFor = "blocks", time.Hour
	policies = append(policies, blocks)
	admitted := make([][keys]atomic.Int64, len(policies))
	var all sync.WaitGroup
	for caller := range callers {
		random := rand.New(rand.NewPCG(1, uint64(caller)))
		all.Go(func() {
			for range each {
				for i, policy := range policies {
					k := min(random.IntN(keys), random.IntN(keys))
					request := limiter.Request{Policy: policy, Key: fmt.Sprint("k", k), Cost: 1}
					var r limiter.Result
					var err error
					switch n := random.IntN(8); {
					case n == 0:
						request.IdempotencyKey = fmt.Sprint(caller, random.Uint64())
						r, err = l.Do(t.Context(), request)
					case n == 1 && policy.Algorithm != limiter.LeakyBucketQueue:
						var made limiter.Reservation
						made, err = l.Reserve(t.Context(), request, time.Hour)
						if r = made.Result; err == nil && r.Allowed {
							_, err = l.Settle(t.Context(), made.ID, 1)
						}
					case n == 2:
						var both limiter.Results
						other := policies[(i+1)%len(policies)]
						both, err = l.AllowAll(t.Context(), request, limiter.Request{Policy: other, Key: request.Key, Cost: 1})
						if both.Allowed {
							admitted[(i+1)%len(policies)][k].Add(1)
						}
						r.Allowed = both.Allowed
					default:
						r, err = l.Allow(t.Context(), policy, request.Key)
					}
					if err != nil && !errors.Is(err, limiter.ErrOverloaded) {
						t.Errorf("%s: %v", policy.Name, err)
					}
					if r.Allowed {
						admitted[i][k].Add(1)
					}
				}
			}
		})
	}
	all.Wait()
	for i, policy := range policies {
		for k := range keys {
			if got := admitted[i][k].Load(); got > limit || k == 0 && got < limit && policy.BlockFor == 0 {
				t.Errorf("%s admitted %d of key %d, the limit is %d", policy.Name, got, k, limit)
			}
		}
	}
	if shared.Load() == 0 {
		t.Error("no callers shared a statement")
	}
}

// TestRouterRefuses: what cannot go to one server is an error, and nothing is counted.
func TestRouterRefuses(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	pool := testworld.Connect(t, p.address)
	fill(t, pool)
	l := testworld.NewLimiter(t, pool, routed(&limiter.Config{}))
	policy := limiter.PerMinute("p", 5)
	requests := []limiter.Request{{Policy: policy, Key: "a", Cost: 1}, {Policy: policy, Key: "b", Cost: 1}}
	const want = `requests[0].Key "a" and requests[1].Key "b" may be on different servers`
	for name, do := range map[string]func(context.Context, ...limiter.Request) (limiter.Results, error){"AllowAll": l.AllowAll, "WaitAll": l.WaitAll} {
		if _, err := do(t.Context(), requests...); !errors.Is(err, limiter.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	if _, err := l.InTx(tx).AllowAll(t.Context(), requests...); !errors.Is(err, limiter.ErrUnsupported) {
		t.Errorf("in a transaction: %v", err)
	}
	for _, key := range []string{"a", "b"} {
		if level := testworld.Level(t, l, policy, key); level != 0 {
			t.Errorf("%s has level %v", key, level)
		}
	}
}
