// Package memory keeps the limiter's state in this process. It decides as the statements
// do, step by step, and is the model for their tests.
package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Store is a store.Store in memory. It is safe for concurrent use.
type Store struct {
	seed         maphash.Seed
	shards       [64]shard
	free         atomic.Int64 // places for new keys
	full         error        // of a request for a new key without a place
	reservations reservations
	bounds       sync.Mutex // held by ops that may add a key to a policy with a bound
}

// New returns an empty Store without a bound.
func New() *Store { return NewBounded(math.MaxInt) }

// NewBounded returns an empty Store of at most keys keys, and as many reservations and
// remembered admissions.
func NewBounded(keys int) *Store {
	m := &Store{
		seed:         maphash.MakeSeed(),
		full:         fmt.Errorf("%w: all of its %d keys are in use: raise Config.MaxKeys", store.ErrFull, keys),
		reservations: newReservations(keys),
	}
	m.free.Store(int64(keys))
	for i := range m.shards {
		m.shards[i].entries, m.shards[i].sweepAt = map[entryKey]*entry{}, minSweep
		m.shards[i].note()
	}
	return m
}

func (m *Store) shard(q *store.Query) (*shard, entryKey) {
	k := entryKey{q.Algorithm, q.Policy, q.Key}
	return &m.shards[m.shardOf(&k)], k
}

func (m *Store) shardOf(k *entryKey) uint64 {
	return maphash.Comparable(m.seed, *k) % uint64(len(m.shards))
}

// with runs f on the key's entry, with the clock as read and the one that never moves
// back. f returns the number of granted steps of q.Cost. A key without an entry gets a
// new one, which is stored if keep is true. The error is a store.ErrFull, before f runs.
func (m *Store) with(q *store.Query, keep bool, f func(e *entry, now, at int64) float64) (store.Outcome, error) {
	s, k := m.shard(q)
	e, now, err := m.entry(s, k, q, keep)
	if err != nil {
		return store.Outcome{}, err
	}
	defer s.mu.Unlock()
	stored := e != nil
	switch {
	case !stored:
		e = &entry{row: newRow(q.Algorithm, now), key: k}
	case e.blank && !keep:
		e, stored = &entry{row: newRow(q.Algorithm, now), key: k}, false
	case e.blank:
		e.row, e.blank = newRow(q.Algorithm, now), false
	}
	at := max(e.updatedAt, now)
	o := e.outcome(q, &q.Rules, now, at, f(e, now, at))
	switch {
	case stored:
		s.changed(e)
	case keep:
		s.add(e)
		m.tidy(s, now)
	}
	return o, nil
}

// Warm gives a key that is not stored a state as of updatedAt. The error is a store.ErrFull.
func (m *Store) Warm(q *store.Query, s algorithm.State, updatedAt, blockedUntil int64) error {
	_, err := m.with(q, true, func(e *entry, _, _ int64) float64 {
		if e.rules.Capacity == 0 {
			e.row = row{state: s, rules: q.Rules, updatedAt: updatedAt, blockedUntil: blockedUntil}
		}
		return 0
	})
	return err
}

// tidy forgets idle entries of a shard that has doubled since the last time.
func (m *Store) tidy(s *shard, now int64) {
	if len(s.entries) > s.sweepAt {
		m.free.Add(int64(s.sweep(now)))
	}
}

// outcome returns the key's state by rules r.
func (e *row) outcome(q *store.Query, r *algorithm.Rules, now, at int64, granted float64) store.Outcome {
	o := store.Outcome{Decided: true, Granted: granted, Now: now, UpdatedAt: at, BlockedUntil: e.blockedUntil}
	if b, ok := e.state.(*algorithm.Bucket); ok {
		o.Ticket = b.Ticket
	}
	o.View = e.state.Seen(r, now, at, q.Room, q.Rest(float64(q.Cost*granted)))
	return o
}

// clock returns the caller's clock, or else this machine's.
func clock(now *int64) int64 {
	if now != nil {
		return *now
	}
	return time.Now().UnixMicro()
}

// Forget forgets idle keys, which also happens as keys are added. now is the caller's
// clock, nil for this machine's.
func (m *Store) Forget(now *int64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		m.free.Add(int64(s.sweep(clock(now))))
		s.mu.Unlock()
	}
}

// Len returns the number of stored keys.
func (m *Store) Len() (n int) {
	for i := range m.shards {
		m.shards[i].mu.Lock()
		n += len(m.shards[i].entries)
		m.shards[i].mu.Unlock()
	}
	return n
}

// Do is store.Store's.
func (m *Store) Do(_ context.Context, op *store.Op) error {
	if bounded(op) {
		return m.doBounded(op)
	}
	return m.do(op)
}

func (m *Store) do(op *store.Op) (err error) {
	q := &op.Query
	switch q.Algorithm {
	case algorithm.Attempts:
		return m.attempts(op)
	case algorithm.Concurrency:
		return m.slots(op)
	}
	switch op.Kind {
	case store.Take:
		op.Outcome, _, err = m.take(q, 0)
	case store.TakeAll, store.TakeAny:
		op.Allowed, err = m.admitAll(op)
	case store.GetAll:
		op.Allowed, err = m.takeAll(op.Groups, false)
	case store.Reserve:
		op.Outcome, err = m.reserve(q, op.Admission, func(ttl int64) (store.Outcome, *entry, error) { return m.take(q, ttl) })
	case store.Grant:
		op.Outcome, err = m.grantOnce(q, op.Admission, op.Lot)
	case store.Charge:
		op.Outcome, err = m.charge(q)
	case store.Refund:
		op.Outcome, err = m.giveBack(q, func(e *entry, now, at int64) float64 { return e.state.Refund(&e.rules, now, at, q.Units) })
	case store.Undo:
		op.Outcome, err = m.giveBack(q, func(e *entry, now, at int64) float64 {
			if e.decidedAt > 0 && e.state.Counts(&e.rules, e.decidedAt, op.Grant, &q.Rules, q.Units) {
				e.blockedUntil = 0
			}
			return e.state.Undo(&e.rules, now, at, op.Grant, &q.Rules, q.Units)
		})
	case store.Settle:
		op.Ended, err = m.settle(op)
	case store.SettleAll:
		err = m.settleAll(op.Ends)
	case store.Get:
		op.Outcome, err = m.get(q)
	case store.GetUsage:
		op.Usage, err = m.usage(q)
		op.Outcome = op.Usage.Outcome
	case store.Block:
		err = m.block(q, op.ForUs)
	case store.Unblock:
		err = m.unblock(q, op.Until)
	case store.Reset:
		m.reset(q)
	case store.Leave:
		op.Allowed, err = m.leave(q, op.Ticket)
	case store.Due:
		op.IDs = m.due(q)
	case store.NextDue:
		op.Wait = m.nextDue()
	case store.Estimate:
		op.Factor = m.estimate(q)
	}
	return err
}

// take grants as many steps as fit. If it grants any and ttl is positive, the entry, which
// it returns, has an open reservation for so long.
func (m *Store) take(q *store.Query, ttl int64) (o store.Outcome, reserved *entry, err error) {
	blocked := false
	o, err = m.with(q, true, func(e *entry, now, at int64) (granted float64) {
		fit := algorithm.Fit(q.Room, e.state.Used(&q.Rules, now, at), q.Cost)
		if blocked = e.blockedUntil > at; !blocked {
			e.decidedAt = at
		}
		switch {
		case blocked:
		case fit >= 1 && q.Count > 0:
			granted = min(q.Count, fit)
			e.state.Advance(&q.Rules, now, at)
			e.state.Put(at, float64(q.Cost*granted))
		case q.BlockFor > 0:
			e.blockedUntil = at + q.BlockFor
		}
		if granted == 0 {
			e.state.Deny(&q.Rules, now, at)
		}
		e.rules, e.updatedAt = q.Rules, at
		if granted > 0 && ttl > 0 {
			e.open, e.reservedUntil, reserved = e.open+1, max(e.reservedUntil, at+ttl), e
		}
		return granted
	})
	o.Blocked = blocked
	return o, reserved, err
}

// grantOnce adds a lot to a balance, unless its Admission was admitted before.
func (m *Store) grantOnce(q *store.Query, a *store.Admission, lot *store.Granting) (store.Outcome, error) {
	if a == nil {
		return m.grant(q, lot)
	}
	return m.reserve(q, a, func(int64) (store.Outcome, *entry, error) {
		o, err := m.grant(q, lot)
		return o, nil, err
	})
}

func (m *Store) grant(q *store.Query, lot *store.Granting) (store.Outcome, error) {
	return m.with(q, true, func(e *entry, _, at int64) float64 {
		e.rules, e.updatedAt = q.Rules, at
		l := algorithm.Lot{Left: q.Units, Ends: lot.Ends, Priority: lot.Priority, Source: strings.Clone(lot.Source)}
		if lot.Refused = e.state.(*algorithm.Account).Grant(at, l); lot.Refused != algorithm.Accepted {
			return 0
		}
		return q.Units
	})
}

// charge adds units up to the burst.
func (m *Store) charge(q *store.Query) (store.Outcome, error) {
	r := q.Rules
	r.Capacity = r.Burst
	return m.with(q, true, func(e *entry, now, at int64) float64 {
		e.rules, e.updatedAt = r, at
		return e.state.Charge(&r, now, at, q.Units)
	})
}

// giveBack changes a stored key by f, which returns the units given back.
func (m *Store) giveBack(q *store.Query, f func(e *entry, now, at int64) float64) (o store.Outcome, err error) {
	_, err = m.with(q, false, func(e *entry, now, at int64) float64 {
		back := f(e, now, at)
		e.updatedAt = at
		o = e.standing(q, now, at, back)
		return back
	})
	return o, err
}

// standing is outcome by the entry's own numbers: for a log, the time for which its
// entries may count.
func (e *row) standing(q *store.Query, now, at int64, granted float64) store.Outcome {
	r := q.Rules
	if l, ok := e.state.(*algorithm.Log); ok {
		r.Period = l.Keep
	}
	return e.outcome(q, &r, now, at, granted)
}

// get reads the key's state.
func (m *Store) get(q *store.Query) (store.Outcome, error) {
	return m.with(q, false, func(*entry, int64, int64) float64 { return 0 })
}

// block blocks the key.
func (m *Store) block(q *store.Query, forUs int64) error {
	_, err := m.with(q, true, func(e *entry, _, at int64) float64 {
		e.blockedUntil, e.decidedAt = max(e.blockedUntil, at+forUs), 0
		return 0
	})
	return err
}

// unblock lifts the block that ends at until; any block if until is 0.
func (m *Store) unblock(q *store.Query, until int64) error {
	_, err := m.with(q, false, func(e *entry, _, _ int64) float64 {
		if until == 0 || until == e.blockedUntil {
			e.blockedUntil = 0
		}
		return 0
	})
	return err
}

// reset forgets the key. Its open reservations have nothing left to give back.
func (m *Store) reset(q *store.Query) {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	s, k := m.shard(q)
	for h := range m.reservations.open[k] { // their units are no longer counted
		h.Units = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[k]; e != nil && s.reset(e, k.algorithm) {
		m.free.Add(1)
	}
}

// leave gives a place in a queue back if no later request has one.
func (m *Store) leave(q *store.Query, ticket int64) (left bool, err error) {
	_, err = m.with(q, false, func(e *entry, now, at int64) float64 {
		b := e.state.(*algorithm.Bucket)
		if left = b.Ticket == ticket; left {
			b.Refund(&e.rules, now, at, q.Units)
			e.updatedAt = at
		}
		return 0
	})
	return left, err
}
