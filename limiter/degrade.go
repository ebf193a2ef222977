package limiter

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// degrade returns the answer of FailOpen, and that of a shadow policy without a decision.
func (e *engine) degrade(ctx context.Context, q *store.Query, p *Policy, err error) Result {
	why := "the policy fails open"
	if p.Shadow {
		why = "the policy is a shadow"
	}
	e.degraded.warn(ctx, e.logger, p.Name, why, err)
	at := time.Now()
	if q.Now != nil {
		at = time.UnixMicro(*q.Now)
	}
	return Result{
		Allowed: true, Granted: q.Units, Limit: p.Limit, Burst: q.Burst,
		Source: SourceDegraded, At: at, Shadowed: p.Shadow,
	}
}

// degradedLog warns at most once every ten seconds.
type degradedLog struct {
	since atomic.Int64 // allowed since the last warning
	next  atomic.Int64 // time of the next warning, in Unix microseconds
}

func (l *degradedLog) warn(ctx context.Context, logger *slog.Logger, policy, why string, err error) {
	l.since.Add(1)
	now, next := time.Now(), l.next.Load()
	if now.UnixMicro() < next || !l.next.CompareAndSwap(next, now.Add(10*time.Second).UnixMicro()) {
		return
	}
	logger.WarnContext(ctx, "pglimit: allowed without a decision: "+why,
		"policy", policy, "since_last", l.since.Swap(0), "error", err)
}
