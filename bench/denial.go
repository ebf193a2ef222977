package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/limiter"
)

// cachedDenial measures the cost of a remembered denial, which needs no statement. Only
// Allow runs meanwhile.
func (b *bench) cachedDenial(ctx context.Context) error {
	const name = "cached-denial"
	if !b.wants(denial) {
		return nil
	}
	progress("a denial from the cache")
	l, err := limiter.New(b.postgres.Pool, &limiter.Config{Timeout: time.Minute, DenyCacheTTL: time.Hour})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // cancellable, as an application's is
	defer cancel()
	once := limiter.Policy{Name: name, Algorithm: limiter.TokenBucket, Limit: 1, Period: 24 * time.Hour}
	if r, err := l.Allow(ctx, once, "user"); err != nil || !r.Allowed {
		return fmt.Errorf("%s: the first request: allowed %v, error %v", name, r.Allowed, err)
	}
	for range b.rounds {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		n := 0
		begin := time.Now()
		// Reading the clock every thousand calls costs next to nothing.
		for time.Since(begin) < b.duration/5 {
			for range 1000 {
				if r, err := l.Allow(ctx, once, "user"); err != nil || r.Allowed {
					return fmt.Errorf("%s: a later request: allowed %v, error %v", name, r.Allowed, err)
				}
			}
			n += 1000
		}
		elapsed := time.Since(begin)
		runtime.ReadMemStats(&after)
		b.report.Denials = append(b.report.Denials, report.Denial{
			Nanoseconds: float64(elapsed.Nanoseconds()) / float64(n),
			Allocs:      float64(after.Mallocs-before.Mallocs) / float64(n),
		})
	}
	return nil
}
