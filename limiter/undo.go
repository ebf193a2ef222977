package limiter

import (
	"context"
	"fmt"
)

// Undo gives back what an earlier answer granted, as far as it is still there, so
// that nothing passes twice. r is the Result of an Allow, AllowN, Do, AllowUpTo, or
// one of an AllowAll, of the same policy and key; undo it once. Result.Granted is how
// many units went back:
//
//   - Of a LeakyBucket, TokenBucket or GCRA, what r granted less what may have leaked
//     since: that much room has been others' already. The rate is the faster of p's
//     and that last decided by.
//   - Of a FixedWindow or SlidingWindowCounter, all until the window has ended that
//     it was counted in (for the counter also while that is the window before, if the
//     Period is still the same), and then nothing.
//   - Of a SlidingWindowLog, all that the entry of that decision still holds.
//
// Nothing is given back, and the answer is how the key stands, where r granted
// nothing, was decided by FailOpen, was Replayed, or is no answer of these verbs:
// what Undo goes by is kept in r, and is lost in JSON. Another process gives back by
// Reserve and Cancel. A LeakyBucketQueue gives ErrUnsupported.
func (l *Limiter) Undo(ctx context.Context, p Policy, key string, r Result) (Result, error) {
	return l.engine.undoResult(ctx, p, key, r)
}

// Undo is Limiter.Undo in the transaction.
func (t *Tx) Undo(ctx context.Context, p Policy, key string, r Result) (Result, error) {
	return t.engine.undoResult(ctx, p, key, r)
}

func (e *engine) undoResult(ctx context.Context, p Policy, key string, made Result) (r Result, err error) {
	if p.Algorithm == LeakyBucketQueue {
		return r, fmt.Errorf("%w: Undo on %s: a place in the queue goes back when its Wait is cancelled", ErrUnsupported, LeakyBucketQueue)
	}
	if !made.grant.Made {
		r, err = e.one(ctx, verbCheck, p.Ask(key, 0))
		r.Allowed, r.Granted, r.RetryAfter, r.Reason = err == nil, 0, 0, ""
		return r, err
	}
	in := p.Ask(key, made.Granted)
	if e.config.Observe != nil {
		defer func() { e.config.Observe(ctx, in, r, err) }()
	}
	var q question
	if err := e.question(verbRefund, in, &q); err != nil {
		return r, err
	}
	o, err := e.config.bounded(ctx, func(ctx context.Context) (outcome, error) { return e.store.undo(ctx, &q, made.grant) })
	e.denied.lift(p, key)
	switch {
	case err == nil:
		return q.result(verbRefund, o, p, e.store.source()), nil
	case p.OnError == FailOpen && e.failsOpen(ctx, err):
		return e.degrade(ctx, &q, p, err), nil
	}
	return r, err
}
