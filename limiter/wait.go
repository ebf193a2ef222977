package limiter

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// DoWait is Do for LeakyBucketQueue that sleeps until the ask's turn, its
// Result.Delay; the other algorithms give ErrUnsupported, and so does an ask with
// an IdempotencyKey. Units leave the queue in the order in which they were asked
// for, across all processes.
//
// When the queue is full, the key is blocked, or the turn would come after
// ctx's deadline, the answer is a denial, at once, and nothing is consumed.
// When ctx ends DoWait returns ctx's error at once, and its place, even if a
// statement in flight takes it only then, goes back if nobody has queued behind
// it. The sleep is real time even when Config.Now is set.
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

// queue takes a place in a queue. The statement does not end with ctx, after
// which nobody would know whether a place was taken: the caller goes at once, and
// what the statement took for it goes back.
func (e *engine) queue(ctx context.Context, ask Ask, q question) (outcome, error) {
	if ctx.Done() == nil || ctx.Err() != nil {
		return e.askOnce(ctx, verbWait, &q, nil)
	}
	type answer struct {
		outcome
		error
	}
	answers := make(chan answer)
	statement, end := context.WithCancel(context.WithoutCancel(ctx))
	e.leaving.RLock()
	go func() {
		defer e.leaving.RUnlock()
		defer end()
		o, err := e.askOnce(statement, verbWait, &q, nil)
		select {
		case answers <- answer{o, err}:
		case <-ctx.Done():
			if err == nil && o.granted > 0 {
				e.giveBack(ctx, ask, &q, o.ticket)
			}
		}
	}()
	select {
	case a := <-answers:
		return a.outcome, a.error
	case <-ctx.Done():
		if e.config.Timeout <= 0 { // nothing else would end it
			time.AfterFunc(DefaultTimeout, end)
		}
		return outcome{}, fmt.Errorf("pglimit: %w", ctx.Err())
	}
}

// leave gives the place of a Wait back that was cancelled during its sleep.
func (e *engine) leave(ctx context.Context, ask Ask, ticket int64) {
	e.leaving.RLock()
	defer e.leaving.RUnlock()
	open := *e // Close waits for this one
	open.closed = new(atomic.Bool)
	var q question
	if open.question(verbWait, ask, &q) == nil {
		e.giveBack(ctx, ask, &q, ticket)
	}
}

// giveBack gives a place back as well as it can: the caller is going, and a place
// that stays taken only makes others wait longer.
func (e *engine) giveBack(ctx context.Context, ask Ask, q *question, ticket int64) {
	_, err := e.config.bounded(context.WithoutCancel(ctx), func(ctx context.Context) (outcome, error) {
		return outcome{}, e.store.leave(ctx, q, ticket)
	})
	e.denied.lift(ask.Policy, ask.Key)
	if err != nil {
		e.config.Logger.WarnContext(ctx, "pglimit: a cancelled Wait could not give its place back", "policy", q.policy, "error", err)
	}
}
