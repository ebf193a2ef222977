package memory

import (
	"context"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// TakeAll decides all joints at one moment, with their shards locked in one order. A
// denial changes no entry, except for the blocks that begin.
func (m *Store) TakeAll(_ context.Context, joints []*store.Joint, possible bool) (bool, error) {
	defer m.lock(joints)()
	now := clock(joints[0].Now)
	next := make([]entry, len(joints))
	for i, j := range joints {
		e := m.copyOf(&j.Query, now)
		at := max(e.updatedAt, now)
		e.state.Advance(&j.Rules, now, at)
		j.Outcome = store.Outcome{Decided: true, Now: now, UpdatedAt: at, BlockedUntil: e.blockedUntil, View: e.state.Seen(&j.Rules, now, at, j.Room, j.Cost)}
		j.Judge(e.blockedUntil > at)
		next[i] = e
	}
	allowed := possible && store.AllFit(joints)
	for i, j := range joints {
		e, at := &next[i], j.Outcome.UpdatedAt
		switch {
		case allowed:
			e.state.Put(at, j.Cost)
			e.rules, e.updatedAt = j.Rules, at
			j.Outcome.View = e.state.Seen(&j.Rules, now, at, j.Room, 0)
			if b, ok := e.state.(*algorithm.Bucket); ok {
				j.Outcome.Ticket = b.Ticket
			}
			m.keep(&j.Query, now, *e)
			continue
		case possible && !j.Fits() && !j.Outcome.Blocked && j.BlockFor > 0:
			j.Outcome.BlockedUntil = at + j.BlockFor
			e := m.copyOf(&j.Query, now)
			e.blockedUntil = max(e.blockedUntil, at+j.BlockFor)
			m.keep(&j.Query, now, e)
		}
		j.Show(func(need float64) algorithm.View { return e.state.Seen(&j.Rules, now, at, j.Capacity, need) })
	}
	return allowed, nil
}

// lock locks the joints' shards and returns the function that unlocks them.
func (m *Store) lock(joints []*store.Joint) (unlock func()) {
	var mine [len(m.shards)]bool
	for _, j := range joints {
		mine[m.shardOf(&j.Query)] = true
	}
	for i := range m.shards {
		if mine[i] {
			m.shards[i].mu.Lock()
		}
	}
	return func() {
		for i := range m.shards {
			if mine[i] {
				m.shards[i].mu.Unlock()
			}
		}
	}
}

// copyOf returns a copy of the key's entry, or a new one. Its shard is locked.
func (m *Store) copyOf(q *store.Query, now int64) entry {
	s, k := m.shard(q)
	if e := s.entries[k]; e != nil {
		c := *e
		c.state = e.state.Clone()
		return c
	}
	return newEntry(q.Algorithm, now)
}

// keep makes e the key's entry. Its shard is locked.
func (m *Store) keep(q *store.Query, now int64, e entry) {
	s, k := m.shard(q)
	if s.entries[k] == nil {
		s.sweep(now)
	}
	s.entries[k] = &e
}
