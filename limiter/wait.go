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
// ctx's deadline, the answer is a denial, at once, and nothing is consumed. Like any
// denial it starts the block that Policy.BlockFor asks for.
//
// When ctx ends DoWait returns ctx's error, and its place, even if a statement in
// flight takes it only then, goes back if nobody has queued behind it: before
// DoWait returns if it had the place, which Config.Timeout bounds, else after it.
// The sleep is real time even when Config.Now is set.
func (l *Limiter) DoWait(ctx context.Context, ask Ask) (Result, error) {
	r, o, err := l.engine.decide(ctx, verbWait, ask, left(ctx), nil)
	if err != nil || sleep(ctx, r.Delay) {
		return r, err
	}
	l.engine.leave(ctx, ask, o.ticket)
	return Result{}, fmt.Errorf("pglimit: %w", ctx.Err())
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

// left is how long ctx lasts.
func left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, time.Until(deadline))
	}
	return math.MaxInt64
}

// sleep tells whether the delay was over before ctx.
func sleep(ctx context.Context, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// queue takes a place in a queue.
func (e *engine) queue(ctx context.Context, ask Ask, q question) (outcome, error) {
	return e.onward(ctx,
		func(ctx context.Context) (outcome, error) { return e.askOnce(ctx, verbWait, &q, nil) },
		func(o outcome) { e.giveBack(ctx, ask, &q, o.ticket) })
}

// onward decides what somebody wants to wait for. What asks does not end with ctx,
// after which nobody would know whether anything was granted: the caller goes at
// once, and what is granted after that is undone.
func (e *engine) onward(ctx context.Context, asks func(context.Context) (outcome, error), undo func(outcome)) (outcome, error) {
	if ctx.Done() == nil || ctx.Err() != nil {
		return asks(ctx)
	}
	type answer struct {
		outcome
		error
	}
	answers := make(chan answer)
	e.leaving.RLock()
	if e.closed.Load() { // meanwhile, by a Close that has not seen this one
		e.leaving.RUnlock()
		return outcome{}, ErrClosed
	}
	statement, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer e.leaving.RUnlock()
		defer end()
		o, err := asks(statement)
		select {
		case answers <- answer{o, err}:
		case <-ctx.Done():
			if err == nil && o.granted > 0 {
				undo(o)
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
	e.undo(ctx, ask, q, func(ctx context.Context) (outcome, error) {
		return outcome{}, e.store.leave(ctx, q, ticket)
	})
}

// undo runs what gives back for q, that ctx does not end but some time does.
func (e *engine) undo(ctx context.Context, ask Ask, q *question, f func(context.Context) (outcome, error)) {
	config := e.config
	if config.Timeout <= 0 {
		config.Timeout = DefaultTimeout
	}
	q.now = e.now()
	_, err := config.bounded(context.WithoutCancel(ctx), f)
	e.denied.lift(ask.Policy, ask.Key)
	if err != nil {
		e.config.Logger.WarnContext(ctx, "pglimit: a cancelled Wait could not give back what it had", "policy", ask.Policy.Name, "error", err)
	}
}
