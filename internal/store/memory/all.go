package memory

import (
	"context"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// TakeAll decides all joints at one moment, with their shards locked in one order. A
// denial changes no entry, except for the blocks that begin. If there is no place for the
// keys that it would add, it changes nothing and returns a store.ErrFull.
func (m *Store) TakeAll(_ context.Context, joints []*store.Joint, possible bool) (bool, error) {
	claimed := 0 // places
	defer func() { m.free.Add(int64(claimed)) }()
	for {
		allowed, missing := m.takeAll(joints, possible, &claimed)
		if missing == 0 {
			return allowed, nil
		}
		for range missing {
			if err := m.claim(clock(joints[0].Now)); err != nil {
				return false, err
			}
			claimed++
		}
	}
}

// takeAll is TakeAll with a number of claimed places, which it reduces by those that it
// uses. If it needs more, it changes nothing and returns how many are missing.
func (m *Store) takeAll(joints []*store.Joint, possible bool, claimed *int) (allowed bool, missing int) {
	defer m.lock(joints)()
	now := clock(joints[0].Now)
	next := make([]row, len(joints))
	for i, j := range joints {
		e := m.copyOf(&j.Query, now)
		at := max(e.updatedAt, now)
		e.state.Advance(&j.Rules, now, at)
		j.Outcome = store.Outcome{Decided: true, Now: now, UpdatedAt: at, BlockedUntil: e.blockedUntil, View: e.state.Seen(&j.Rules, now, at, j.Room, j.Cost)}
		j.Judge(e.blockedUntil > at)
		next[i] = e
	}
	allowed = possible && store.AllFit(joints)
	blocks := func(j *store.Joint) bool {
		return possible && !allowed && !j.Fits() && !j.Outcome.Blocked && j.BlockFor > 0
	}
	if missing = m.missing(joints, claimed, func(j *store.Joint) bool { return allowed || blocks(j) }); missing > 0 {
		return false, missing
	}
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
			m.keep(&j.Query, *e, claimed)
			continue
		case blocks(j):
			j.Outcome.BlockedUntil = at + j.BlockFor
			e := m.copyOf(&j.Query, now)
			e.blockedUntil = max(e.blockedUntil, at+j.BlockFor)
			m.keep(&j.Query, e, claimed)
		}
		j.Show(func(need float64) algorithm.View { return e.state.Seen(&j.Rules, now, at, j.Capacity, need) })
	}
	for _, j := range joints {
		s, _ := m.shard(&j.Query)
		m.tidy(s, now)
	}
	return allowed, 0
}

// missing returns the number of places that the joints to keep need beyond those claimed.
// Before that it claims what is free. Their shards are locked.
func (m *Store) missing(joints []*store.Joint, claimed *int, keep func(*store.Joint) bool) int {
	need := 0
	for _, j := range joints {
		if s, k := m.shard(&j.Query); s.entries[k] == nil && keep(j) {
			need++
		}
	}
	for *claimed < need && m.claimFree() {
		*claimed++
	}
	return max(0, need-*claimed)
}

// lock locks the joints' shards and returns the function that unlocks them.
func (m *Store) lock(joints []*store.Joint) (unlock func()) {
	var mine [len(m.shards)]bool
	for _, j := range joints {
		mine[m.shardOf(&entryKey{j.Algorithm, j.Policy, j.Key})] = true
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

// copyOf returns a copy of the key's row, or a new one. Its shard is locked.
func (m *Store) copyOf(q *store.Query, now int64) row {
	s, k := m.shard(q)
	if e := s.entries[k]; e != nil && !e.blank {
		c := e.row
		c.state = e.state.Clone()
		return c
	}
	return newRow(q.Algorithm, now)
}

// keep makes r the key's row, and uses a claimed place if it has none. Its shard is
// locked.
func (m *Store) keep(q *store.Query, r row, claimed *int) {
	s, k := m.shard(q)
	if e := s.entries[k]; e != nil {
		e.row, e.blank = r, false
		s.changed(e)
		return
	}
	*claimed--
	s.add(&entry{row: r, key: k})
}
