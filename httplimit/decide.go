package httplimit

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// decide asks for all or nothing, and sleeps until the turn of asks that queue.
func decide(ctx context.Context, l *limiter.Limiter, asks []limiter.Ask) (limiter.Results, error) {
	if len(asks) > 1 {
		return decideAll(ctx, l, asks)
	}
	// A single one shares a statement with others, is answered by a denial that is
	// remembered, and gives its place in a queue back.
	var r limiter.Result
	var err error
	if asks[0].Policy.Algorithm == limiter.LeakyBucketQueue {
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

func decideAll(ctx context.Context, l *limiter.Limiter, asks []limiter.Ask) (limiter.Results, error) {
	all, err := l.AllowAll(ctx, asks...)
	if err != nil {
		return all, err
	}
	var delay time.Duration
	for i := range all.Each {
		delay = max(delay, all.Each[i].Delay)
	}
	if delay == 0 {
		return all, nil
	}
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return all, nil
	case <-ctx.Done():
		return all, fmt.Errorf("httplimit: while waiting for a turn: %w", ctx.Err())
	}
}
