package limiter

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// failed returns the answer to a call that failed in the store.
func (e *engine) failed(ctx context.Context, c *call, err error) (r Result, _ error) {
	if c.verb.decides() && c.verb != verbReserve && c.request.Policy.OnError == FailOpen && e.failsOpen(ctx, err) {
		return e.degrade(ctx, &c.query, &c.request.Policy, err), nil
	}
	if errors.Is(err, store.ErrOverloaded) {
		r.Reason = ReasonOverload
	}
	return r, err
}

// failsOpen reports whether FailOpen applies to an error.
func (e *engine) failsOpen(ctx context.Context, err error) bool {
	return !e.tx && ctx.Err() == nil && !errors.Is(err, store.ErrInvalid) && !errors.Is(err, store.ErrClosed)
}

// degrade returns the answer of FailOpen.
func (e *engine) degrade(ctx context.Context, q *store.Query, p *Policy, err error) Result {
	e.degraded.warn(ctx, e.logger, p.Name, err)
	at := time.Now()
	if q.Now != nil {
		at = time.UnixMicro(*q.Now)
	}
	return Result{
		Allowed: true, Granted: q.Units, Limit: p.Limit, Burst: q.Burst,
		Source: SourceDegraded, At: at,
	}
}

// degradedLog warns at most once every ten seconds.
type degradedLog struct {
	since atomic.Int64 // allowed since the last warning
	next  atomic.Int64 // time of the next warning, in Unix microseconds
}

func (l *degradedLog) warn(ctx context.Context, logger *slog.Logger, policy string, err error) {
	l.since.Add(1)
	now, next := time.Now(), l.next.Load()
	if now.UnixMicro() < next || !l.next.CompareAndSwap(next, now.Add(10*time.Second).UnixMicro()) {
		return
	}
	logger.WarnContext(ctx, "pglimit: allowed without a decision: the policy fails open",
		"policy", policy, "since_last", l.since.Swap(0), "error", err)
}
