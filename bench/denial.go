package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
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
		const calls = 1000 // at once, so that what measures them costs next to nothing
		s, err := measure.Run(ctx, measure.Load{
			Callers: 1, Duration: b.short().duration / 5, Keys: []string{"user"}, Sequence: []uint32{0},
			Decide: func(ctx context.Context, key string) (float64, error) {
				for range calls {
					if r, err := l.Allow(ctx, once, key); err != nil || r.Allowed || r.Source != limiter.SourceCache {
						return 0, fmt.Errorf("want a denial from the cache, not %+v, error %v", r, err)
					}
				}
				return calls, nil
			},
		})
		if err != nil {
			return nil, err
		}
		return report.Figures{report.Mean: 1e9 / s.PerSecond() / calls, report.Allocs: s.Allocs / calls}, nil
	})
	return p
}
