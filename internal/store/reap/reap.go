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

// Take is store.Store's.
func (s *Store) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	began := time.Now()
	o, err := s.Store.Take(ctx, q)
	if err != nil || o.Granted != 0 || o.Blocked || !s.again(ctx, began, q, o, &err) {
		return o, err
	}
	return repeat(ctx, began, s.timeout, func(ctx context.Context) (store.Outcome, error) { return s.Store.Take(ctx, q) })
}

// Reserve is store.Store's.
func (s *Store) Reserve(ctx context.Context, q *store.Query, a *store.Admission) (store.Outcome, error) {
	began := time.Now()
	o, err := s.Store.Reserve(ctx, q, a)
	if err != nil || !o.Decided || o.Granted != 0 || o.Blocked || !s.again(ctx, began, q, o, &err) {
		return o, err
	}
	return repeat(ctx, began, s.timeout, func(ctx context.Context) (store.Outcome, error) { return s.Store.Reserve(ctx, q, a) })
}

// Get is store.Store's. In a transaction it locks nothing, so it gives nothing back.
func (s *Store) Get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	began := time.Now()
	o, err := s.Store.Get(ctx, q)
	if err != nil || s.tx || fits(q, o) || !s.again(ctx, began, q, store.Outcome{}, &err) {
		return o, err
	}
	return repeat(ctx, began, s.timeout, func(ctx context.Context) (store.Outcome, error) { return s.Store.Get(ctx, q) })
}

func fits(q *store.Query, o store.Outcome) bool {
	return algorithm.Fit(q.Capacity, o.View.Level(&q.Rules, o.UpdatedAt), q.Cost) >= 1
}

// TakeAll is store.Store's.
func (s *Store) TakeAll(ctx context.Context, joints []*store.Joint, possible bool) (bool, error) {
	began := time.Now()
	allowed, err := s.Store.TakeAll(ctx, joints, possible)
	if err != nil || allowed {
		return allowed, err
	}
	freed := false
	for _, j := range joints {
		if !j.Fits() && !j.Outcome.Blocked && s.again(ctx, began, &j.Query, j.Outcome, &err) {
			freed = true
		}
		if err != nil {
			return false, err
		}
	}
	if !freed {
		return false, nil
	}
	return repeat(ctx, began, s.timeout, func(ctx context.Context) (bool, error) { return s.Store.TakeAll(ctx, joints, possible) })
}

// repeat runs a denied request once more, in what is left of the timeout. If that is too
// little, the policy must not fail open: the database has answered.
func repeat[T any](ctx context.Context, began time.Time, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	return store.Since(ctx, began, timeout, func(rest context.Context) (T, error) {
		v, err := f(rest)
		if err != nil && rest.Err() != nil {
			err = fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrAnswering, err)
		}
		return v, err
	})
}

// again gives back the units of expired reservations of q's key and reports whether there
// were any. Then it lifts the block that the denial o started. An error that ends the
// decision is stored in fails.
func (s *Store) again(ctx context.Context, began time.Time, q *store.Query, o store.Outcome, fails *error) bool {
	if q.Units == 0 || !q.Possible() || q.Algorithm == algorithm.LeakyBucketQueue || q.Now == nil && s.watch.quiet() {
		return false
	}
	own := q.Apart() // a statement may be in flight after the denial stands
	freed, err := store.Since(ctx, began, s.timeout, func(ctx context.Context) (bool, error) { return s.giveBack(ctx, own, o) })
	if err != nil && s.tx {
		*fails = err
	}
	return freed && err == nil
}

func (s *Store) giveBack(ctx context.Context, q *store.Query, o store.Outcome) (freed bool, err error) {
	// A transaction's snapshot may be too old for the watch.
	if q.Now == nil && !s.tx {
		if err = s.watch.look(ctx, s.Store); err != nil || s.watch.quiet() {
			return false, err
		}
	}
	ids, err := s.Store.Due(ctx, q)
	commit := q.Commit
	if !s.tx {
		commit = store.Relaxed // if it is lost, the reservation expires once more
	}
	for _, id := range ids {
		due := store.ReservationID{Algorithm: q.Algorithm, Policy: q.Policy, Key: q.Key, ID: id}
		e, err := s.Store.Settle(ctx, &store.Ending{ReservationID: due, State: store.Expired, Now: q.Now, Commit: commit})
		if err != nil && !errors.Is(err, store.ErrNoReservation) {
			return freed, err
		}
		freed = freed || e.Freed
	}
	if !freed || err != nil {
		return freed, err
	}
	if o.IsBlocked() {
		err = s.Store.Unblock(ctx, q, o.BlockedUntil)
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
	wait, err := s.NextDue(ctx)
	if err == nil {
		w.until.Store(sent + min(wait, store.MinTTL.Microseconds()))
	}
	return err
}
