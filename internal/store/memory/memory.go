// Package memory keeps the limiter's state in this process. It decides as the statements
// do, step by step, and is the model for their tests.
package memory

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Store is a store.Store in memory. It is safe for concurrent use.
type Store struct {
	seed         maphash.Seed
	shards       [64]shard
	reservations reservations
}

// shard has the keys of one hash. It forgets idle ones each time it has doubled since the
// last time.
type shard struct {
	mu      sync.Mutex
	entries map[entryKey]*entry
	sweepAt int
}

type entryKey struct {
	algorithm   algorithm.Name
	policy, key string
}

type entry struct {
	state                   algorithm.State
	rules                   algorithm.Rules // as of the last decision
	updatedAt, blockedUntil int64
}

func newEntry(a algorithm.Name, now int64) entry {
	return entry{state: algorithm.New(a.Family(), now), rules: algorithm.Rules{Leak: 1, Tick: 1, Period: 1}, updatedAt: now}
}

const minSweep = 64 // entries in a shard before it looks for idle ones

// New returns an empty Store.
func New() *Store {
	m := &Store{seed: maphash.MakeSeed(), reservations: newReservations()}
	for i := range m.shards {
		m.shards[i] = shard{entries: map[entryKey]*entry{}, sweepAt: minSweep}
	}
	return m
}

func (m *Store) shard(q *store.Query) (*shard, entryKey) {
	return &m.shards[m.shardOf(q)], entryKey{q.Algorithm, q.Policy, q.Key}
}

func (m *Store) shardOf(q *store.Query) uint64 {
	return maphash.Comparable(m.seed, entryKey{q.Algorithm, q.Policy, q.Key}) % uint64(len(m.shards))
}

// with runs f on the key's entry, with the clock as read and the one that never moves
// back. f returns the number of granted steps of q.Cost. A key without an entry gets a
// new one, which is stored if keep is true.
func (m *Store) with(q *store.Query, keep bool, f func(e *entry, now, at int64) float64) (store.Outcome, error) {
	s, k := m.shard(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := clock(q.Now)
	e := s.entries[k]
	if e == nil {
		n := newEntry(q.Algorithm, now)
		e = &n
		if keep {
			s.sweep(now)
			s.entries[k] = e
		}
	}
	at := max(e.updatedAt, now)
	return e.outcome(q, &q.Rules, now, at, f(e, now, at)), nil
}

// outcome returns the key's state by rules r.
func (e *entry) outcome(q *store.Query, r *algorithm.Rules, now, at int64, granted float64) store.Outcome {
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

// sweep forgets idle entries to make room for a new one.
func (s *shard) sweep(now int64) {
	if len(s.entries) < s.sweepAt {
		return
	}
	for k, e := range s.entries {
		if e.idleAt() <= now {
			delete(s.entries, k)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.entries))
}

// Forget forgets idle keys, which also happens as keys are added. now is the caller's
// clock, nil for this machine's.
func (m *Store) Forget(now *int64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.sweepAt = 0
		s.sweep(clock(now))
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

// idleAt returns the time from which the entry decides as a missing one would.
func (e *entry) idleAt() int64 { return max(e.state.IdleAt(&e.rules), e.updatedAt, e.blockedUntil) }

// Take grants as many steps as fit.
func (m *Store) Take(_ context.Context, q *store.Query) (store.Outcome, error) {
	blocked := false
	o, err := m.with(q, true, func(e *entry, now, at int64) (granted float64) {
		fit := algorithm.Fit(q.Room, e.state.Used(&q.Rules, now, at), q.Cost)
		blocked = e.blockedUntil > at
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
		return granted
	})
	o.Blocked = blocked
	return o, err
}

// Charge adds units up to the burst.
func (m *Store) Charge(_ context.Context, q *store.Query) (store.Outcome, error) {
	r := q.Rules
	r.Capacity = r.Burst
	return m.with(q, true, func(e *entry, now, at int64) float64 {
		e.rules, e.updatedAt = r, at
		return e.state.Charge(&r, now, at, q.Units)
	})
}

// Refund gives units back, at most those in use.
func (m *Store) Refund(_ context.Context, q *store.Query) (store.Outcome, error) {
	return m.giveBack(q, func(e *entry, now, at int64) float64 { return e.state.Refund(&e.rules, now, at, q.Units) })
}

// Undo gives back what is left of units that were counted in g.
func (m *Store) Undo(_ context.Context, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
	return m.giveBack(q, func(e *entry, now, at int64) float64 {
		return e.state.Undo(&e.rules, now, at, g, &q.Rules, q.Units)
	})
}

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
func (e *entry) standing(q *store.Query, now, at int64, granted float64) store.Outcome {
	r := q.Rules
	if l, ok := e.state.(*algorithm.Log); ok {
		r.Period = l.Keep
	}
	return e.outcome(q, &r, now, at, granted)
}

// Get reads the key's state.
func (m *Store) Get(_ context.Context, q *store.Query) (store.Outcome, error) {
	return m.with(q, false, func(*entry, int64, int64) float64 { return 0 })
}

// Block blocks the key.
func (m *Store) Block(_ context.Context, q *store.Query, forUs int64) error {
	_, err := m.with(q, true, func(e *entry, _, at int64) float64 {
		e.blockedUntil = max(e.blockedUntil, at+forUs)
		return 0
	})
	return err
}

// Unblock lifts the block that ends at until; any block if until is 0.
func (m *Store) Unblock(_ context.Context, q *store.Query, until int64) error {
	_, err := m.with(q, false, func(e *entry, _, _ int64) float64 {
		if until == 0 || until == e.blockedUntil {
			e.blockedUntil = 0
		}
		return 0
	})
	return err
}

// Reset forgets the key. Its open reservations have nothing left to give back.
func (m *Store) Reset(_ context.Context, q *store.Query) error {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	s, k := m.shard(q)
	for h := range m.reservations.open[k] { // their units are no longer counted
		h.Units = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, k)
	return nil
}

// Leave gives a place in a queue back if no later request has one.
func (m *Store) Leave(_ context.Context, q *store.Query, ticket int64) (left bool, err error) {
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
