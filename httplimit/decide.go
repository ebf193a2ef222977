package httplimit

import (
	"context"
	"slices"

	"github.com/pglimit/pglimit/limiter"
)

// decide asks for all or nothing, and sleeps until the turn of asks that queue.
func decide(ctx context.Context, l *limiter.Limiter, asks []limiter.Ask) (limiter.Results, error) {
	if len(asks) > 1 {
		if slices.ContainsFunc(asks, queues) {
			return l.WaitAll(ctx, asks...)
		}
		return l.AllowAll(ctx, asks...)
	}
	// A single one shares a statement with others, or is answered by a denial that is
	// remembered.
	var r limiter.Result
	var err error
	if queues(asks[0]) {
		r, err = l.DoWait(ctx, asks[0])
	} else {
		r, err = l.Do(ctx, asks[0])
	}
	all := limiter.Results{Allowed: r.Allowed, Binding: -1, Each: []limiter.Result{r}}
	if !r.Allowed {
		all.Binding = 0
	}
	return all, err
}

func queues(ask limiter.Ask) bool { return ask.Policy.Algorithm == limiter.LeakyBucketQueue }
