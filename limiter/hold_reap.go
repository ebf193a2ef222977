package limiter

import (
	"context"
	"errors"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// maxDue is how many expired holds of a key are looked for at once.
const maxDue = 100

// reaping asks once more for what was denied with o, each time after expired holds
// of the key were given back, until it is granted or there are none. Where they
// cannot be looked for the denial stands, and is no reason to fail open; in the
// caller's transaction that is an error, since it has failed.
func (e *engine) reaping(ctx context.Context, v verb, q *question, h *holding, o outcome) (outcome, error) {
	for e.reapable(v, q) && q.lacks(v, o) {
		freed, err := e.reap(ctx, q, v, o)
		if err != nil && e.inTx {
			return o, err
		}
		if err != nil || !freed {
			return o, nil
		}
		if o, err = e.askOnce(ctx, v, q, h); err != nil {
			return o, err
		}
	}
	return o, nil
}

// reapable tells whether holds of the key that have expired could make a
// difference. A Check in a transaction locks nothing.
func (e *engine) reapable(v verb, q *question) bool {
	switch v {
	case verbTake, verbUpTo, verbReserve:
	case verbCheck:
		if e.inTx {
			return false
		}
	default:
		return false
	}
	return q.units > 0 && q.possible() && q.algorithm != LeakyBucketQueue
}

// lacks tells whether room is what an ask was denied for.
func (q *question) lacks(v verb, o outcome) bool {
	if v == verbCheck {
		return algorithm.Fit(q.Capacity, o.view.Level(&q.Rules, o.updatedAt), q.cost) < 1
	}
	return o.granted == 0 && o.before == nil
}

// reap gives back what expired holds of the key still count, and tells whether
// there was any. Then it lifts the block that the denial o has started.
func (e *engine) reap(ctx context.Context, q *question, v verb, o outcome) (freed bool, err error) {
	if q.now == nil && e.holds.quiet() {
		return false, nil
	}
	// What a transaction sees may be older than what the watch has to know.
	if q.now == nil && !e.inTx {
		_, err = e.config.bounded(ctx, func(ctx context.Context) (outcome, error) { return outcome{}, e.holds.look(ctx, e.store) })
		if err != nil || e.holds.quiet() {
			return false, err
		}
	}
	for more := true; more && !freed && err == nil; {
		_, err = e.config.bounded(ctx, func(ctx context.Context) (_ outcome, err error) {
			freed, more, err = e.reapSome(ctx, q)
			return outcome{}, err
		})
	}
	if !freed || err != nil {
		return freed, err
	}
	if v != verbCheck && o.blockedUntil > o.updatedAt {
		_, err = e.config.bounded(ctx, func(ctx context.Context) (outcome, error) {
			return outcome{}, e.store.unblock(ctx, q, o.blockedUntil)
		})
	}
	e.liftStored(q.algorithm, q.policy, q.key)
	return true, err
}

// reapSome does so with maxDue holds at most; more tells whether there may be
// others, and it is not in vain to try them.
func (e *engine) reapSome(ctx context.Context, q *question) (freed, more bool, err error) {
	ids, err := e.store.due(ctx, q)
	for _, id := range ids {
		s, err := e.store.settle(ctx, &settlement{id: id, algorithm: q.algorithm, state: stateExpired, now: q.now, commit: q.commit})
		if err != nil && !errors.Is(err, ErrNoHold) {
			return freed, false, err
		}
		freed, more = freed || s.freed, more || s.changed
	}
	return freed, more && len(ids) == maxDue, err
}
