package limiter

import (
	"context"
	"fmt"
	"math"
	"time"
)

// DoWait is Do for LeakyBucketQueue that sleeps until the ask's turn, its
// Result.Delay; the other algorithms give ErrUnsupported, and so does an ask with
// an IdempotencyKey. Units leave the queue in the order in which they were asked
// for, across all processes.
//
// When the queue is full, the key is blocked, or the turn would come after
// ctx's deadline, the answer is a denial, at once, and nothing is consumed.
// When ctx ends during the sleep DoWait returns ctx's error, and the place goes
// back if nobody has queued behind it. The sleep is real time even when
// Config.Now is set.
func (l *Limiter) DoWait(ctx context.Context, ask Ask) (Result, error) {
	within := time.Duration(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		within = max(0, time.Until(deadline))
	}
	r, o, err := l.engine.decide(ctx, verbWait, ask, within, nil)
	if err != nil || r.Delay <= 0 {
		return r, err
	}
	turn := time.NewTimer(r.Delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return r, nil
	case <-ctx.Done():
		l.engine.leave(ctx, ask, o.ticket)
		return Result{}, fmt.Errorf("pglimit: %w", ctx.Err())
	}
}

// Wait is DoWait of n units that returns nil when it is their turn, and a
// *DeniedError for a denial.
func (l *Limiter) Wait(ctx context.Context, p Policy, key string, n float64) error {
	r, err := l.DoWait(ctx, p.Ask(key, n))
	if err == nil && !r.Allowed {
		return &DeniedError{Result: r}
	}
	return err
}

// leave gives a place back as well as it can: the caller is going, and a place
// that stays taken only makes others wait longer.
func (e *engine) leave(ctx context.Context, ask Ask, ticket int64) {
	var q question
	if e.question(verbWait, ask, &q) != nil {
		return
	}
	_, err := e.config.bounded(context.WithoutCancel(ctx), func(ctx context.Context) (outcome, error) {
		return outcome{}, e.store.leave(ctx, &q, ticket)
	})
	e.denied.lift(ask.Policy, ask.Key)
	if err != nil {
		e.config.Logger.WarnContext(ctx, "pglimit: a cancelled Wait could not give its place back", "policy", ask.Policy.Name, "error", err)
	}
}
