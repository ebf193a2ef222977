package memory

import (
	"context"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// The methods of store.Store in a transaction.

// Take is store.Store's.
func (t *Txn) Take(ctx context.Context, q *store.Query) (o store.Outcome, err error) {
	s, err := t.upsert(ctx, q)
	if err != nil {
		return o, err
	}
	return s.Take(ctx, q)
}

// TakeAll is store.Store's. It locks the keys one after the other, and what it has locked
// stays so after a denial too.
func (t *Txn) TakeAll(ctx context.Context, joints []*store.Joint, possible bool) (bool, error) {
	if !possible {
		return t.readAll(ctx, joints)
	}
	for _, j := range joints {
		if _, err := t.upsert(ctx, &j.Query); err != nil {
			return false, err
		}
	}
	return t.own.TakeAll(ctx, joints, true)
}

// readAll is TakeAll for joints that can never fit.
func (t *Txn) readAll(ctx context.Context, joints []*store.Joint) (bool, error) {
	if err := t.usable(); err != nil {
		return false, err
	}
	seen := New()
	t.base.reservations.mu.Lock()
	unlock := t.base.lock(joints)
	for _, j := range joints {
		k := entryKey{j.Algorithm, j.Policy, j.Key}
		if t.locks[k] != nil {
			seen.put(t.own, k)
		} else {
			seen.put(t.base, k)
		}
	}
	unlock()
	t.base.reservations.mu.Unlock()
	return seen.TakeAll(ctx, joints, false)
}

// Charge is store.Store's.
func (t *Txn) Charge(ctx context.Context, q *store.Query) (o store.Outcome, err error) {
	s, err := t.upsert(ctx, q)
	if err != nil {
		return o, err
	}
	return s.Charge(ctx, q)
}

// Refund is store.Store's.
func (t *Txn) Refund(ctx context.Context, q *store.Query) (o store.Outcome, err error) {
	s, err := t.update(ctx, q)
	if err != nil {
		return o, err
	}
	return s.Refund(ctx, q)
}

// Undo is store.Store's.
func (t *Txn) Undo(ctx context.Context, q *store.Query, g algorithm.Grant) (o store.Outcome, err error) {
	s, err := t.update(ctx, q)
	if err != nil {
		return o, err
	}
	return s.Undo(ctx, q, g)
}

// Get is store.Store's. It locks nothing.
func (t *Txn) Get(ctx context.Context, q *store.Query) (o store.Outcome, err error) {
	s, err := t.reading(q)
	if err != nil {
		return o, err
	}
	return s.Get(ctx, q)
}

// Usage is store.Store's. It locks nothing.
func (t *Txn) Usage(ctx context.Context, q *store.Query) (u store.Usage, err error) {
	s, err := t.reading(q)
	if err != nil {
		return u, err
	}
	return s.Usage(ctx, q)
}

// Block is store.Store's.
func (t *Txn) Block(ctx context.Context, q *store.Query, forUs int64) error {
	s, err := t.upsert(ctx, q)
	if err != nil {
		return err
	}
	return s.Block(ctx, q, forUs)
}

// Unblock is store.Store's.
func (t *Txn) Unblock(ctx context.Context, q *store.Query, until int64) error {
	s, err := t.update(ctx, q)
	if err != nil {
		return err
	}
	return s.Unblock(ctx, q, until)
}

// Reset is store.Store's.
func (t *Txn) Reset(ctx context.Context, q *store.Query) error {
	s, err := t.update(ctx, q)
	if err != nil {
		return err
	}
	return s.Reset(ctx, q)
}

// Leave is store.Store's.
func (t *Txn) Leave(ctx context.Context, q *store.Query, ticket int64) (bool, error) {
	s, err := t.update(ctx, q)
	if err != nil {
		return false, err
	}
	return s.Leave(ctx, q, ticket)
}

// Reserve is store.Store's.
func (t *Txn) Reserve(ctx context.Context, q *store.Query, a *store.Admission) (o store.Outcome, err error) {
	s, err := t.upsert(ctx, q)
	if err != nil {
		return o, err
	}
	t.boundReservations()
	return s.Reserve(ctx, q, a)
}

// boundReservations lets the transaction add as many records as base has places for.
func (t *txn) boundReservations() {
	r := &t.base.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	room := r.most - len(r.byID)
	for id := range t.own.reservations.byID {
		if r.byID[id] == nil {
			room--
		}
	}
	t.own.reservations.full, t.own.reservations.most = r.full, len(t.own.reservations.byID)+max(0, room)
}

// Settle is store.Store's. It locks nothing if no transaction has committed the
// reservation, and this one has not made it.
func (t *Txn) Settle(ctx context.Context, e *store.Ending) (store.Ended, error) {
	k := entryKey{e.Algorithm, e.Policy, e.Key}
	if err := t.usable(); err != nil {
		return store.Ended{}, err
	}
	if t.locks[k] == nil {
		t.base.reservations.mu.Lock()
		known := t.base.reservations.byID[e.ReservationID] != nil
		t.base.reservations.mu.Unlock()
		if known {
			if err := t.lock(ctx, k, false, e.Now); err != nil {
				return store.Ended{}, err
			}
		}
	}
	return t.own.Settle(ctx, e)
}

// Due is store.Store's.
func (t *Txn) Due(ctx context.Context, q *store.Query) ([]string, error) {
	s, err := t.reading(q)
	if err != nil {
		return nil, err
	}
	return s.Due(ctx, q)
}

// NextDue is store.Store's, for what others have committed.
func (t *Txn) NextDue(ctx context.Context) (int64, error) {
	if err := t.usable(); err != nil {
		return 0, err
	}
	return t.base.NextDue(ctx)
}

var _ store.Store = (*Txn)(nil)
