package memory

import (
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// admitAll takes what an op asks of several keys, and stores the admissions, unless some were
// admitted before.
func (m *Store) admitAll(op *store.Op) (allowed bool, err error) {
	if op.Groups[0].Admission != nil {
		m.reservations.mu.Lock()
		defer m.reservations.mu.Unlock()
		now := clock(op.Groups[0].Now)
		m.forget(now)
		for _, g := range op.Groups {
			g.Outcome = store.Outcome{}
			if g.Outcome.Before, err = m.before(&g.Query, g.Admission, now); err != nil {
				return false, err
			}
			allowed = allowed || g.Outcome.Before != nil
		}
		if allowed {
			return true, nil
		}
		if len(m.reservations.byID)+len(op.Groups) > m.reservations.most {
			return false, m.reservations.full
		}
	}
	if op.Kind == store.TakeAny {
		allowed, err = m.takeAny(op.Groups, op.Partial)
	} else {
		allowed, err = m.takeAll(op.Groups, store.AllPossible(op.Groups))
	}
	for _, g := range op.Groups {
		if q := g.Query; err == nil && allowed && g.Admission != nil && g.Fits() {
			if q.Count = 1; op.Kind == store.TakeAny {
				q.Cost = g.Given
			}
			m.admit(&q, g.Admission, g.Outcome, m.pin(g))
		}
	}
	return allowed, err
}

// pin makes the key's entry count an open reservation that the group was granted.
func (m *Store) pin(g *store.Group) *entry {
	s, k := m.shard(&g.Query)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[k]
	if e != nil && g.Admission.TTL > 0 {
		e.open, e.reservedUntil = e.open+1, max(e.reservedUntil, g.Outcome.UpdatedAt+g.Admission.TTL)
		return e
	}
	return nil
}

// takeAll decides all groups at one moment, with their shards locked in one order. A
// denial changes no entry, except for the blocks that begin. If there is no place for the
// keys that it would add, it changes nothing and returns a store.ErrFull.
func (m *Store) takeAll(groups []*store.Group, possible bool) (bool, error) {
	return m.claiming(groups, func(claimed *int) (bool, int) { return m.tryAll(groups, possible, claimed) })
}

// claiming tries until it has claimed the places that try says are missing.
func (m *Store) claiming(groups []*store.Group, try func(claimed *int) (allowed bool, missing int)) (bool, error) {
	claimed := 0 // places
	defer func() { m.free.Add(int64(claimed)) }()
	for {
		allowed, missing := try(&claimed)
		if missing == 0 {
			return allowed, nil
		}
		for range missing {
			if err := m.claim(clock(groups[0].Now)); err != nil {
				return false, err
			}
			claimed++
		}
	}
}

// tryAll is takeAll with a number of claimed places, which it reduces by those that it
// uses. If it needs more, it changes nothing and returns how many are missing.
func (m *Store) tryAll(groups []*store.Group, possible bool, claimed *int) (allowed bool, missing int) {
	defer m.lock(groups)()
	now := clock(groups[0].Now)
	next := make([]row, len(groups))
	for i, g := range groups {
		e := m.copyOf(&g.Query, now)
		at := max(e.updatedAt, now)
		e.state.Advance(&g.Rules, now, at)
		g.Outcome = store.Outcome{Decided: true, Now: now, UpdatedAt: at, BlockedUntil: e.blockedUntil, View: e.state.Seen(&g.Rules, now, at, g.Room, g.Cost)}
		g.Judge(e.blockedUntil > at)
		next[i] = e
	}
	allowed = possible && store.AllFit(groups)
	blocks := func(g *store.Group) bool {
		return possible && !allowed && !g.Fits() && !g.Outcome.Blocked && g.BlockFor > 0
	}
	if missing = m.missing(groups, claimed, func(g *store.Group) bool { return allowed || blocks(g) }); missing > 0 {
		return false, missing
	}
	for i, g := range groups {
		e, at := &next[i], g.Outcome.UpdatedAt
		switch {
		case allowed:
			e.state.Put(at, g.Cost)
			e.rules, e.updatedAt, e.decidedAt = g.Rules, at, at
			g.Outcome.View = e.state.Seen(&g.Rules, now, at, g.Room, 0)
			if b, ok := e.state.(*algorithm.Bucket); ok {
				g.Outcome.Ticket = b.Ticket
			}
			m.keep(&g.Query, *e, claimed)
			continue
		case blocks(g):
			g.Outcome.BlockedUntil = at + g.BlockFor
			e := m.copyOf(&g.Query, now)
			e.blockedUntil, e.decidedAt = max(e.blockedUntil, at+g.BlockFor), at
			m.keep(&g.Query, e, claimed)
		}
		g.Show(func(need float64) algorithm.View { return e.state.Seen(&g.Rules, now, at, g.Ceiling(), need) })
	}
	for _, g := range groups {
		s, _ := m.shard(&g.Query)
		m.tidy(s, now)
	}
	return allowed, 0
}

// missing returns the number of places that the groups to keep need beyond those claimed.
// Before that it claims what is free. Their shards are locked.
func (m *Store) missing(groups []*store.Group, claimed *int, keep func(*store.Group) bool) int {
	need := 0
	for _, g := range groups {
		if s, k := m.shard(&g.Query); s.entries[k] == nil && keep(g) {
			need++
		}
	}
	for *claimed < need && m.claimFree() {
		*claimed++
	}
	return max(0, need-*claimed)
}

// lock locks the groups' shards and returns the function that unlocks them.
func (m *Store) lock(groups []*store.Group) (unlock func()) {
	var mine [len(m.shards)]bool
	for _, g := range groups {
		mine[m.shardOf(&entryKey{g.Algorithm, g.Policy, g.Key})] = true
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
