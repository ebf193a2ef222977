// Package reap gives back the units of expired reservations before a request is denied
// because of them.
package reap

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Store is a store.Store that gives back a key's expired reservations after a denial and
// repeats the request, until it is granted or none are left. If the look for them fails,
// the denial stands; in the caller's transaction it is an error, since the transaction
// has failed.
type Store struct {
	store.Store
	watch   *Watch
	timeout time.Duration
	tx      bool
	freed   func(a algorithm.Name, policy, key string)
}

// New returns a Store over inner. Each look is bounded by timeout, if that is positive.
// freed is called with the stored key after units of it went back.
func New(inner store.Store, w *Watch, timeout time.Duration, freed func(a algorithm.Name, policy, key string)) *Store {
	return &Store{Store: inner, watch: w, timeout: timeout, freed: freed}
}

// InTx returns s over the store of the caller's transaction.
func (s *Store) InTx(inner store.Store) *Store {
	return &Store{Store: inner, watch: s.watch, tx: true, freed: s.freed}
}

// Take is store.Store's.
func (s *Store) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	o, err := s.Store.Take(ctx, q)
	for err == nil && o.Granted == 0 && !o.Blocked && s.again(ctx, q, o, &err) {
		o, err = s.Store.Take(ctx, q)
	}
	return o, err
}

// Reserve is store.Store's.
func (s *Store) Reserve(ctx context.Context, q *store.Query, a *store.Admission) (store.Outcome, error) {
	o, err := s.Store.Reserve(ctx, q, a)
	for err == nil && o.Decided && o.Granted == 0 && !o.Blocked && s.again(ctx, q, o, &err) {
		o, err = s.Store.Reserve(ctx, q, a)
	}
	return o, err
}

// Get is store.Store's. In a transaction it locks nothing, so it gives nothing back.
func (s *Store) Get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	o, err := s.Store.Get(ctx, q)
	for err == nil && !s.tx && !fits(q, o) && s.again(ctx, q, store.Outcome{}, &err) {
		o, err = s.Store.Get(ctx, q)
	}
	return o, err
}

func fits(q *store.Query, o store.Outcome) bool {
	return algorithm.Fit(q.Capacity, o.View.Level(&q.Rules, o.UpdatedAt), q.Cost) >= 1
}

// TakeAll is store.Store's.
func (s *Store) TakeAll(ctx context.Context, joints []*store.Joint, possible bool) (bool, error) {
	for {
		allowed, err := s.Store.TakeAll(ctx, joints, possible)
		if err != nil || allowed {
			return allowed, err
		}
		freed := false
		for _, j := range joints {
			if !j.Fits() && !j.Outcome.Blocked && s.again(ctx, &j.Query, j.Outcome, &err) {
				freed = true
			}
			if err != nil {
				return false, err
			}
		}
		if !freed {
			return false, nil
		}
	}
}

// again gives back the units of expired reservations of q's key and reports whether there
// were any. Then it lifts the block that the denial o started. An error that ends the
// decision is stored in fails.
func (s *Store) again(ctx context.Context, q *store.Query, o store.Outcome, fails *error) bool {
	if q.Units == 0 || !q.Possible() || q.Algorithm == algorithm.LeakyBucketQueue {
		return false
	}
	freed, err := s.giveBack(ctx, q, o)
	if err != nil && s.tx {
		*fails = err
	}
	return freed && err == nil
}

func (s *Store) giveBack(ctx context.Context, request *store.Query, o store.Outcome) (freed bool, err error) {
	q := request.Apart() // a statement may be in flight after the denial stands
	if q.Now == nil && s.watch.quiet() {
		return false, nil
	}
	// A transaction's snapshot may be too old for the watch.
	if q.Now == nil && !s.tx {
		if err = s.watch.look(ctx, s.Store); err != nil || s.watch.quiet() {
			return false, err
		}
	}
	for more := true; more && !freed && err == nil; {
		_, err = store.Within(ctx, s.timeout, func(ctx context.Context) (_ struct{}, err error) {
			freed, more, err = s.giveSomeBack(ctx, q)
			return struct{}{}, err
		})
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

// giveSomeBack gives back at most MaxDue reservations. more reports whether others may be
// worth trying.
func (s *Store) giveSomeBack(ctx context.Context, q *store.Query) (freed, more bool, err error) {
	ids, err := s.Store.Due(ctx, q)
	for _, id := range ids {
		due := store.ReservationID{Algorithm: q.Algorithm, Policy: q.Policy, Key: q.Key, ID: id}
		e, err := s.Store.Settle(ctx, &store.Ending{ReservationID: due, State: store.Expired, Now: q.Now, Commit: q.Commit})
		if err != nil && !errors.Is(err, store.ErrNoReservation) {
			return freed, false, err
		}
		freed, more = freed || e.Freed, more || e.Changed
	}
	return freed, more && len(ids) == store.MaxDue, err
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
