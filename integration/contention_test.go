package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

const (
	callers = 32
	pools   = 4
	rounds  = 20
	capUnit = 30 // units in all that a key admits
)

// TestNeverOverAdmits lets 32 goroutines on 4 pools ask one cold key for 1 to
// 3 units until none is left: exactly the limit is admitted, in 20 rounds of
// every variant, without and with a janitor that sweeps all the time.
func TestNeverOverAdmits(t *testing.T) {
	t.Parallel()
	for _, withJanitor := range []bool{false, true} {
		t.Run(fmt.Sprintf("janitor=%v", withJanitor), func(t *testing.T) {
			t.Parallel()
			limiters := limitersOnPools(t, newDatabase(t))
			if withJanitor {
				sweepAllTheTime(t, connect(t, limiters.url))
			}
			for _, p := range variants(capUnit, 1000*time.Hour) {
				t.Run(variant(p), func(t *testing.T) {
					for round := range rounds {
						if got := storm(t, limiters.all, p, fmt.Sprint("key", round)); got != capUnit {
							t.Fatalf("round %d: admitted %v units of %v", round, got, capUnit)
						}
					}
				})
			}
		})
	}
}

// storm asks until everybody was denied a single unit; it returns what was
// admitted in all.
func storm(t *testing.T, ls []*limiter.Limiter, p limiter.Policy, key string) float64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range callers {
		wg.Go(func() {
			<-start
			for admitted.Load() < 10*capUnit { // enough to know
				n := float64(1 + rand.IntN(3))
				r, err := ls[i%len(ls)].AllowN(context.Background(), p, key, n)
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

type pooledLimiters struct {
	url string
	all []*limiter.Limiter
}

func limitersOnPools(t *testing.T, url string) pooledLimiters {
	p := pooledLimiters{url: url}
	for range pools {
		p.all = append(p.all, newLimiter(t, connect(t, url), nil))
	}
	return p
}

// sweepAllTheTime runs a janitor without a pause until the test ends.
func sweepAllTheTime(t *testing.T, pool *pgxpool.Pool) {
	j, err := janitor.New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := j.Sweep(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}
