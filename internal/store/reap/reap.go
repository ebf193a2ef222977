// Package reap gives back the units of expired reservations before a request is denied
// because of them.
package reap

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Store is a store.Store that gives back expired reservations of a key after a denial, at
// most store.MaxDue, and then repeats the request once. If giving back fails, the denial
// stands; in the caller's transaction it is an error, since the transaction has failed.
type Store struct {
	store.Store
	watch   *Watch
	timeout time.Duration
	tx      bool
	freed   func(a algorithm.Name, policy, key string)
}

// New returns a Store over inner. A request, what follows its denial and its repetition end
// within timeout, if that is positive. freed is called with the stored key after units of it
// went back.
func New(inner store.Store, w *Watch, timeout time.Duration, freed func(a algorithm.Name, policy, key string)) *Store {
	return &Store{Store: inner, watch: w, timeout: timeout, freed: freed}
}

// InTx returns s over the store of the caller's transaction.
func (s *Store) InTx(inner store.Store) *Store {
	return &Store{Store: inner, watch: s.watch, tx: true, freed: s.freed}
}

// Do is store.Store's. A Get gives nothing back in a transaction, where it locks nothing.
func (s *Store) Do(ctx context.Context, op *store.Op) error {
	began := time.Now()
	err := s.Store.Do(ctx, op)
	if err != nil || !denied(op) || op.Kind == store.Get && s.tx {
		return err
	}
	freed := false
	switch op.Kind {
	case store.Get:
		freed, err = s.again(ctx, began, &op.Query, store.Outcome{})
	case store.TakeAll, store.GetAll:
		for _, g := range op.Groups {
			if err == nil && !g.Fits() && !g.Outcome.Blocked {
				var more bool
				more, err = s.again(ctx, began, &g.Query, g.Outcome)
				freed = freed || more
			}
		}
	default:
		freed, err = s.again(ctx, began, &op.Query, op.Outcome)
	}
	if err != nil || !freed {
		return err
	}
	// If what is left of the timeout is too little, the policy must not fail open: the
	// database has answered.
	return store.Since(ctx, began, s.timeout, func(rest context.Context) error {
		err := s.Store.Do(rest, op)
		if err != nil && rest.Err() != nil {
			err = fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrAnswering, err)
		}
		return err
	})
}

// denied reports whether op might be granted after expired reservations were given back.
func denied(op *store.Op) bool {
	q, o := &op.Query, &op.Outcome
	switch op.Kind {
	case store.Take:
		return o.Granted == 0 && !o.Blocked
	case store.Reserve:
		return o.Decided && o.Granted == 0 && !o.Blocked
	case store.Get:
		return algorithm.Fit(q.Capacity, o.View.Level(&q.Rules, o.UpdatedAt), q.Cost) < 1
	case store.TakeAll, store.GetAll:
		return !op.Allowed
	}
	return false
}

// again gives back the units of expired reservations of q's key and reports whether there
// were any. Then it lifts the block that the denial o started. An error ends the decision in
// a transaction only.
func (s *Store) again(ctx context.Context, began time.Time, q *store.Query, o store.Outcome) (freed bool, err error) {
	if q.Units == 0 || !q.Possible() || q.Algorithm == algorithm.LeakyBucketQueue || q.Now == nil && s.watch.quiet() {
		return false, nil
	}
	own := *q // a statement may be in flight after the denial stands
	err = store.Since(ctx, began, s.timeout, func(ctx context.Context) (err error) {
		freed, err = s.giveBack(ctx, own, o)
		return err
	})
	if err == nil || s.tx {
		return freed, err
	}
	return false, nil
}

func (s *Store) giveBack(ctx context.Context, q store.Query, o store.Outcome) (freed bool, err error) {
	// A transaction's snapshot may be too old for the watch.
	if q.Now == nil && !s.tx {
		if err = s.watch.look(ctx, s.Store); err != nil || s.watch.quiet() {
			return false, err
		}
	}
	due := store.Op{Kind: store.Due, Query: q}
	if err = s.Store.Do(ctx, &due); err != nil {
		return false, err
	}
	for _, id := range due.IDs {
		end := store.Op{Kind: store.Settle, Query: q, ID: id, State: store.Expired}
		end.Units = 0
		if !s.tx {
			end.Commit = store.Relaxed // if it is lost, the reservation expires once more
		}
		err := s.Store.Do(ctx, &end)
		if err != nil && !errors.Is(err, store.ErrNoReservation) {
			return freed, err
		}
		freed = freed || err == nil && end.Ended.Freed
	}
	if !freed {
		return false, nil
	}
	if o.IsBlocked() {
		err = s.Store.Do(ctx, &store.Op{Kind: store.Unblock, Query: q, Until: o.BlockedUntil})
	}
	s.freed(q.Algorithm, q.Policy, q.Key)
	return true, err
}

// Watch saves denials the look for expired reservations while none of any key can have
// expired. A reservation lasts for store.MinTTL at least, so one look at all of them is
// good for that long. It is safe for concurrent use.
type Watch struct {
	start time.Time
	until atomic.Int64 // microseconds since start; quiet until then
}

// NewWatch returns a Watch that has not looked yet.
func NewWatch() *Watch { return &Watch{start: time.Now()} }

func (w *Watch) quiet() bool { return time.Since(w.start).Microseconds() < w.until.Load() }

// look reads when the next reservation expires. A reservation that is made later expires
// MinTTL after the answer at the earliest. One that another transaction had made but not
// committed may be overlooked until then.
func (w *Watch) look(ctx context.Context, s store.Store) error {
	sent := time.Since(w.start).Microseconds()
	next := store.Op{Kind: store.NextDue}
	err := s.Do(ctx, &next)
	if err == nil {
		w.until.Store(sent + min(next.Wait, store.MinTTL.Microseconds()))
	}
	return err
}
