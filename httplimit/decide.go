package httplimit

import (
	"context"
	"slices"

	"github.com/pglimit/pglimit/limiter"
)

// decide decides the requests all or nothing, and waits for the turn of those that queue.
func decide(ctx context.Context, l *limiter.Limiter, requests []limiter.Request) (limiter.Results, error) {
	if len(requests) > 1 {
		if slices.ContainsFunc(requests, queues) {
			return l.WaitAll(ctx, requests...)
		}
		return l.AllowAll(ctx, requests...)
	}
	// A single request can share a statement with others or use a cached denial.
	var r limiter.Result
	var err error
	if queues(requests[0]) {
		r, err = l.DoWait(ctx, requests[0])
	} else {
		r, err = l.Do(ctx, requests[0])
	}
	all := limiter.Results{Allowed: r.Allowed, DeniedBy: -1, PerRequest: []limiter.Result{r}}
	if !r.Allowed {
		all.DeniedBy = 0
	}
	return all, err
}

func queues(request limiter.Request) bool {
	return request.Policy.Algorithm == limiter.LeakyBucketQueue
}
