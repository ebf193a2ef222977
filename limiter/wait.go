package limiter

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Wait queues n units and sleeps until their turn; it is for
// LeakyBucketQueue, the others give ErrUnsupported. Units leave the queue in
// the order in which they were asked for, across all processes.
//
// When the queue is full, the key is blocked, or the turn would come after
// ctx's deadline, Wait returns a *DeniedError at once and nothing is consumed.
// When ctx ends during the sleep it returns ctx's error, and the place goes
// back if nobody has queued behind it. The sleep is real time even when
// Config.Now is set.
func (l *Limiter) Wait(ctx context.Context, p Policy, key string, n float64) error {
	within := time.Duration(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		within = max(0, time.Until(deadline))
	}
	ask := p.Ask(key, n)
	r, o, err := l.engine.decide(ctx, verbWait, ask, within, nil)
	if err != nil {
		return err
	}
	if !r.Allowed {
		return &DeniedError{Result: r}
	}
	if r.Delay <= 0 {
		return nil
	}
	turn := time.NewTimer(r.Delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		l.engine.leave(ctx, ask, o.ticket)
		return fmt.Errorf("pglimit: %w", ctx.Err())
	}
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
