package bed

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// NewJanitor makes a janitor that logs to the test.
func NewJanitor(t *testing.T, pool *pgxpool.Pool, cfg *janitor.Config) *janitor.Janitor {
	t.Helper()
	if cfg == nil {
		cfg = &janitor.Config{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	j, err := janitor.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// Parameters of a Storm.
const (
	Callers = 32
	CapUnit = 30 // units that a key admits in total
)

// Allow is a Limiter's AllowN, or another way to the same decision.
type Allow = func(context.Context, limiter.Policy, string, float64) (limiter.Result, error)

// Storm has Callers goroutines request 1 to 3 units of one key until each was denied a
// single unit. It returns the units admitted in total.
func Storm(t *testing.T, ways []Allow, p limiter.Policy, key string) float64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range Callers {
		wg.Go(func() {
			<-start
			for admitted.Load() < 10*CapUnit { // enough to know
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

// SweepOften runs a janitor until the test ends, at most a hundred sweeps a second.
// Without a pause it would keep a processor from the test.
func SweepOften(t *testing.T, pool *pgxpool.Pool) {
	j, err := janitor.New(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if _, err := j.Sweep(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}
