package contender

import (
	"context"
	"math"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
)

// throttledGCRA reads, computes and does a compare-and-swap, so on a hot key it mostly
// retries. It fails after ten tries by default; here it may not.
var throttledGCRA = Contender{
	ID: "throttled", What: "throttled v2, GCRA by compare and swap, by go-redis v9, its tries unbounded",
	Server: onRedis, Keeps: nothing, State: "throttled", Aside: true,
	Open: func(e *Env, r Rule) (Decider, error) {
		store, err := goredisstore.NewCtx(e.GoRedis, "throttled:")
		if err != nil {
			return nil, err
		}
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
			MaxRate: throttled.PerDuration(r.Limit, r.Period), MaxBurst: r.Burst - 1,
		})
		if err != nil {
			return nil, err
		}
		l.SetMaxCASAttemptsLimit(math.MaxInt)
		return &throttledDecider{l}, nil
	},
}

type throttledDecider struct {
	limiter *throttled.GCRARateLimiterCtx
}

func (d *throttledDecider) Decide(ctx context.Context, key string) (bool, error) {
	limited, _, err := d.limiter.RateLimitCtx(ctx, key, 1)
	return !limited, err
}

func (d *throttledDecider) Used(ctx context.Context, key string) (float64, error) {
	_, r, err := d.limiter.RateLimitCtx(ctx, key, 0)
	return float64(r.Limit - r.Remaining), err
}
