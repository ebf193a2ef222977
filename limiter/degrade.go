package limiter

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// degrade returns the answer of FailOpen, and that of a shadow policy without a decision.
func (e *engine) degrade(ctx context.Context, q *store.Query, p *Policy, err error) Result {
	why := "the policy fails open"
	if p.Shadow {
		why = "the policy is a shadow"
	}
	if since, ok := e.degraded.next(10 * time.Second); ok {
		e.logger.WarnContext(ctx, "pglimit: allowed without a decision: "+why, "policy", p.Name, "since_last", since, "error", err)
	}
	at := time.Now()
	if q.Now != nil {
		at = time.UnixMicro(*q.Now)
	}
	return Result{
		Allowed: true, Granted: q.Units, Limit: p.Limit, Burst: q.Burst,
		Source: SourceDegraded, At: at, Shadowed: p.Shadow,
	}
}
