package contender

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
)

// redisRate is redis_rate v10, GCRA in Lua, by go-redis v9.
var redisRate = Contender{
	ID: "redis_rate", Redis: true,
	Open: func(e *Env, r Rule) (Decider, error) {
		return &redisRateDecider{
			redis_rate.NewLimiter(e.GoRedis),
			redis_rate.Limit{Rate: r.Limit, Burst: r.Burst, Period: r.Period},
		}, nil
	},
}

type redisRateDecider struct {
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

func (d *redisRateDecider) Decide(ctx context.Context, key string) (float64, error) {
	r, err := d.limiter.Allow(ctx, key, d.limit)
	if err != nil {
		return 0, err
	}
	return float64(r.Allowed), nil
}

func (d *redisRateDecider) Used(ctx context.Context, key string) (float64, error) {
	r, err := d.limiter.AllowN(ctx, key, d.limit, 0)
	if err != nil {
		return 0, err
	}
	return float64(d.limit.Burst - r.Remaining), nil
}
