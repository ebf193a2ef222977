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

// decision is what New decided for an HTTP request.
type decision struct {
	requests []limiter.Request
	all      limiter.Results
}

type decisionKey struct{}

// FromContext returns what New requested for an HTTP request that passed, and the results.
// ctx is the context of the request that the next handler gets. all.PerRequest[i] is the
// result of requests[i]; neither may be modified. With New inside New it is the decision of
// the inner one.
//
// The next handler can show what remains or give units back:
//
//	requests, all, ok := httplimit.FromContext(r.Context())
//	if ok && free {
//		_, err = l.Undo(r.Context(), requests[0].Policy, requests[0].Key, all.PerRequest[0])
//	}
//
// A policy that failed open or locally has a result too, with limiter.SourceDegraded. ok is false if
// nothing was requested. With WithRefundIf, do not call Undo for what that refunds: the units
// would go back twice.
func FromContext(ctx context.Context) (requests []limiter.Request, all limiter.Results, ok bool) {
	d, ok := ctx.Value(decisionKey{}).(*decision)
	if !ok {
		return nil, limiter.Results{DeniedBy: -1}, false
	}
	return d.requests, d.all, true
}

func queues(request limiter.Request) bool {
	return request.Policy.Algorithm == limiter.LeakyBucketQueue
}
