package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Reaper is a store.Store that gives back expired reservations of a key after a denial, at
// most store.MaxDue, and then repeats the request once. If giving back fails, the denial
// stands; in the caller's transaction it is an error, since the transaction has failed.
type Reaper struct {
	store.Store
	watch   *watch
	timeout time.Duration
	tx      bool
	freed   func(a algorithm.Name, policy, key string)
}

// NewReaper returns a Reaper over inner. A request, what follows its denial and its repetition end
// within timeout, if that is positive. freed is called with the stored key after units of it
// went back.
func NewReaper(inner store.Store, timeout time.Duration, freed func(a algorithm.Name, policy, key string)) *Reaper {
	return &Reaper{Store: inner, watch: newWatch(), timeout: timeout, freed: freed}
}

// InTx returns r over the store of the caller's transaction.
func (r *Reaper) InTx(inner store.Store) *Reaper {
	return &Reaper{Store: inner, watch: r.watch, tx: true, freed: r.freed}
}

// Do is store.Store's. A Get gives nothing back in a transaction, where it locks nothing.
func (r *Reaper) Do(ctx context.Context, op *store.Op) error {
	began := time.Now()
	err := r.Store.Do(ctx, op)
	if err != nil || !denied(op) || op.Kind == store.Get && r.tx {
		return err
	}
	freed := false
	switch op.Kind {
	case store.Get:
		freed, err = r.again(ctx, began, &op.Query, store.Outcome{})
	case store.TakeAll, store.GetAll, store.TakeAny:
		for _, g := range op.Groups {
			if err == nil && !g.Fits() && !g.Outcome.Blocked {
				var more bool
				more, err = r.again(ctx, began, &g.Query, g.Outcome)
				freed = freed || more
			}
		}
	default:
		freed, err = r.again(ctx, began, &op.Query, op.Outcome)
	}
	if err != nil || !freed {
		return err
	}
	// If what is left of the timeout is too little, the policy must not fail open: the
	// database has answered.
	return store.Since(ctx, began, r.timeout, func(rest context.Context) error {
		err := r.Store.Do(rest, op)
		if err != nil && rest.Err() != nil {
			err = fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrAnswering, err)
		}
		return err
	})
}

// denied reports whether op might be granted after expired reservations were given back. A key
// without a row has none.
func denied(op *store.Op) bool {
	if op.Full != store.HasRoom {
		return false
	}
	q, o := &op.Query, &op.Outcome
	switch op.Kind {
	case store.Take:
		return o.Granted == 0 && !o.Blocked
	case store.Reserve:
		return o.Decided && o.Granted == 0 && !o.Blocked
	case store.Get:
		return algorithm.Fit(q.Ceiling(), o.View.Level(&q.Rules, o.UpdatedAt), q.Cost) < 1
	case store.TakeAll, store.GetAll, store.TakeAny:
		return !op.Allowed
	}
	return false
}

// again gives back the units of expired reservations of q's key and reports whether there
// were any. Then it lifts the block that the denial o started. An error ends the decision in
// a transaction only.
func (r *Reaper) again(ctx context.Context, began time.Time, q *store.Query, o store.Outcome) (freed bool, err error) {
	if q.Units == 0 || !q.Possible() || q.Algorithm == algorithm.LeakyBucketQueue || q.Now == nil && r.watch.quiet() {
		return false, nil
	}
	own := *q // a statement may be in flight after the denial stands
	if q.Now != nil && o.Now > *q.Now {
		now := o.Now // a shared statement has read the clock later than its caller
		own.Now = &now
	}
	err = store.Since(ctx, began, r.timeout, func(ctx context.Context) (err error) {
		freed, err = r.giveBack(ctx, own, o)
		return err
	})
	if err == nil || r.tx {
		return freed, err
	}
	return false, nil
}

func (r *Reaper) giveBack(ctx context.Context, q store.Query, o store.Outcome) (freed bool, err error) {
	// A transaction's snapshot may be too old for the watch.
	if q.Now == nil && !r.tx {
		if err = r.watch.look(ctx, r.Store); err != nil || r.watch.quiet() {
			return false, err
		}
	}
	due := store.Op{Kind: store.Due, Query: q}
	if err = r.Store.Do(ctx, &due); err != nil {
		return false, err
	}
	for _, id := range due.IDs {
		end := store.Op{Kind: store.Settle, Query: q, ID: id, State: store.Expired}
		end.Units = 0
		if !r.tx {
			end.Commit = store.Relaxed // if it is lost, the reservation expires once more
		}
		err := r.Store.Do(ctx, &end)
		if err != nil && !errors.Is(err, store.ErrNoReservation) {
			return freed, err
		}
		freed = freed || err == nil && end.Ended.Freed
	}
	if !freed {
		return false, nil
	}
	if o.IsBlocked() {
		err = r.Store.Do(ctx, &store.Op{Kind: store.Unblock, Query: q, Until: o.BlockedUntil})
	}
	r.freed(q.Algorithm, q.Policy, q.Key)
	return true, err
}

// watch saves denials the look for expired reservations while none of any key can have
// expired. A reservation lasts for store.MinTTL at least, so one look at all of them is
// good for that long. It is safe for concurrent use.
type watch struct {
	start time.Time
	until atomic.Int64 // microseconds since start; quiet until then
}

// newWatch returns a watch that has not looked yet.
func newWatch() *watch { return &watch{start: time.Now()} }

func (w *watch) quiet() bool { return time.Since(w.start).Microseconds() < w.until.Load() }

// look reads when the next reservation expires. A reservation that is made later expires
// MinTTL after the answer at the earliest. One that another transaction had made but not
// committed may be overlooked until then.
func (w *watch) look(ctx context.Context, s store.Store) error {
	sent := time.Since(w.start).Microseconds()
	next := store.Op{Kind: store.NextDue}
	err := s.Do(ctx, &next)
	if err == nil {
		w.until.Store(sent + min(next.Wait, store.MinTTL.Microseconds()))
	}
	return err
}
