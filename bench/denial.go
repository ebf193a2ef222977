package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/limiter"
)

// denial measures the cost of a remembered denial, which needs no statement. Only Allow
// runs meanwhile. It has no table: all of its figures have goals.
func (b *bench) denial() (p part) {
	p.add("denial", "remembered", "1", func(ctx context.Context, _ int) (report.Figures, error) {
		l, err := limiter.New(b.env.Pool, &limiter.Config{Timeout: time.Minute, DenyCacheTTL: time.Hour})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(ctx) // cancellable, as an application's is
		defer cancel()
		once := limiter.Policy{Name: "denial", Algorithm: limiter.TokenBucket, Limit: 1, Period: 24 * time.Hour}
		for range 2 { // a grant in the first round, then a denial from the database
			if _, err := l.Allow(ctx, once, "user"); err != nil {
				return nil, err
			}
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		n := 0
		begin := time.Now()
		// Reading the clock every thousand calls costs next to nothing.
		for time.Since(begin) < b.short().duration/5 {
			for range 1000 {
				if r, err := l.Allow(ctx, once, "user"); err != nil || r.Allowed || r.Source != limiter.SourceCache {
					return nil, fmt.Errorf("want a denial from the cache, not %+v, error %v", r, err)
				}
			}
			n += 1000
		}
		elapsed := time.Since(begin)
		runtime.ReadMemStats(&after)
		return report.Figures{
			report.Mean: float64(elapsed) / float64(n), report.Allocs: float64(after.Mallocs-before.Mallocs) / float64(n),
		}, nil
	})
	return p
}
