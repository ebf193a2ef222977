package moving

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"golang.org/x/time/rate"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// The bodies of these functions are blocks of docs/moving.md.

func redisRateBefore(ctx context.Context, old *redis_rate.Limiter, user string) error {
	r, err := old.Allow(ctx, user, redis_rate.Limit{Rate: 100, Period: time.Minute, Burst: 20})
	if err != nil {
		return err
	}
	if r.Allowed == 0 {
		return fmt.Errorf("retry after %v", r.RetryAfter)
	}
	return nil
}

func redisRateAfter(ctx context.Context, l *limiter.Limiter, user string) error {
	api := limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 100, Period: time.Minute, Burst: 20}
	r, err := l.Allow(ctx, api, user)
	if err != nil {
		return err
	}
	if !r.Allowed {
		return fmt.Errorf("retry after %v", r.RetryAfter)
	}
	return nil
}

func redisRateTakeOver(ctx context.Context, old *redis_rate.Limiter, limit redis_rate.Limit, l *limiter.Limiter, api limiter.Policy, user string) error {
	r, err := old.AllowN(ctx, user, limit, 0)
	if err != nil {
		return err
	}
	_, err = l.Charge(ctx, api, user, float64(limit.Burst-r.Remaining))
	return err
}

func rateBefore(ctx context.Context, calls []func()) error {
	partner := rate.NewLimiter(10, 1)
	for _, call := range calls {
		if err := partner.Wait(ctx); err != nil {
			return err
		}
		call()
	}
	return nil
}

func rateAfter(ctx context.Context, l *limiter.Limiter, calls []func()) error {
	partner := limiter.Policy{Name: "partner", Algorithm: limiter.LeakyBucketQueue, Limit: 10, Period: time.Second, Burst: 100}
	for _, call := range calls {
		if err := l.Wait(ctx, partner, "all", 1); err != nil {
			return err
		}
		call()
	}
	return nil
}

func ululeAfter(l *limiter.Limiter, mux *http.ServeMux) (http.Handler, error) {
	perClient := limiter.Policy{Name: "client", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Minute}
	limit := httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, perClient), httplimit.WithXRateLimit())
	return limit(mux), nil
}

func tableAfter(ctx context.Context, l *limiter.Limiter, client string) (limiter.Result, error) {
	api := limiter.Policy{Name: "api", Algorithm: limiter.FixedWindow, Limit: 1000, Calendar: limiter.Day}
	r, err := l.Allow(ctx, api, client)
	return r, err
}
