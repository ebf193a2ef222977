package decide

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// allow is a Limiter's AllowN, or another way to the same decision.
type allow = func(context.Context, limiter.Policy, string, float64) (limiter.Result, error)

const (
	callers = 32
	most    = 30 // units that a key admits in total
)

// storm has callers request 1 to 3 units of one key until each was denied a single unit. It
// returns the units admitted in total.
func storm(t *testing.T, ways []allow, p limiter.Policy, key string) float64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range callers {
		wg.Go(func() {
			<-start
			for admitted.Load() < 10*most { // enough to know
				n := float64(1 + rand.IntN(3))
				r, err := ways[i%len(ways)](context.Background(), p, key, n)
				if err != nil {
					t.Error(err)
					return
				}
				if r.Allowed {
					admitted.Add(int64(n))
				} else if n == 1 {
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	return float64(admitted.Load())
}

// TestDecideNeverOverAdmits has 32 goroutines request 1 to 3 units of one cold key until
// none is left. Exactly the limit is admitted, over each driver and by the SQL functions,
// also with a janitor that sweeps a hundred times a second, and in a database whose default
// isolation is stricter.
func TestDecideNeverOverAdmits(t *testing.T) {
	t.Parallel()
	for _, world := range []string{"as usual", "with a janitor", "repeatable read", "serializable"} {
		t.Run(world, func(t *testing.T) {
			t.Parallel()
			url := testworld.FunctionsPool(t).Config().ConnString()
			all := map[string][]allow{}
			rounds := 1
			switch world {
			case "repeatable read", "serializable":
				testworld.Isolate(t, testworld.Connect(t, url), world)
			case "with a janitor":
				testworld.SweepOften(t, testworld.Connect(t, url))
				fallthrough
			default:
				rounds = 5
				clients := testworld.Connect(t, url, testworld.Connections(callers))
				all["SQL functions"] = []allow{func(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
					return (&testworld.Functions{Q: clients}).AllowN(ctx, p, key, n)
				}}
			}
			for range 4 {
				for name, open := range testworld.Drivers(t, url) {
					all[name] = append(all[name], open(nil).AllowN)
				}
			}
			for name, way := range all {
				policies := testworld.Variants(most, 1000*time.Hour)
				if name != "SQL functions" {
					policies = append(policies, limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: most, Calendar: limiter.Month})
				}
				for _, p := range policies {
					for round := range rounds {
						if got := storm(t, way, p, fmt.Sprint(name, round)); got != most {
							t.Fatalf("%s, %s, round %d: admitted %v units of %v", name, testworld.Variant(p), round, got, most)
						}
					}
				}
			}
		})
	}
}
