package memory

import (
	"slices"

	"github.com/pglimit/pglimit/internal/store"
)

// bounded reports whether op may add a key to a policy that bounds them.
func bounded(op *store.Op) bool {
	switch op.Kind {
	case store.Take, store.Reserve, store.Charge, store.Block:
		return op.Bound != nil
	case store.Get:
		return op.Bound != nil && !(op.Units > 0 && !op.Possible())
	case store.TakeAll, store.TakeAny:
		return slices.ContainsFunc(op.Groups, func(g *store.Group) bool { return g.Bound != nil })
	}
	return false
}

// doBounded carries out an op as package keybound does in a database. Here an idle key makes
// room at once, and new keys are counted exactly, one op at a time.
func (m *Store) doBounded(op *store.Op) error {
	m.bounds.Lock()
	defer m.bounds.Unlock()
	if op.Kind == store.TakeAll || op.Kind == store.TakeAny {
		return m.allBounded(op)
	}
	if m.hasRow(&op.Query) || m.rows(&op.Query) < op.Bound.MaxKeys {
		return m.do(op)
	}
	return op.WithoutRow(m.do)
}

// allBounded is doBounded for a TakeAll, or a TakeAny, which goes on without full groups. If its other keys are denied, they are the reason.
func (m *Store) allBounded(op *store.Op) error {
	type policy struct{ algorithm, name string }
	added, full, missing := map[policy]int64{}, false, 0
	for _, g := range op.Groups {
		if g.Full = false; g.Bound == nil || m.hasRow(&g.Query) {
			continue
		}
		missing++
		p := policy{string(g.Algorithm), g.Policy}
		g.Full = m.rows(&g.Query)+added[p] >= g.Bound.MaxKeys
		full = full || g.Full
		added[p]++
	}
	if op.Kind == store.TakeAny {
		return m.do(op)
	}
	if full && missing < len(op.Groups) && !op.Once() {
		look := &store.Op{Kind: store.GetAll, Groups: op.Groups}
		if err := m.do(look); err != nil || store.Denied(op.Groups) {
			return err
		}
	}
	if full {
		op.Full = store.DeniedNow
		return nil
	}
	return m.do(op)
}

// hasRow reports whether the key is stored and not idle.
func (m *Store) hasRow(q *store.Query) bool {
	s, k := m.shard(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[k]
	return e != nil && e.counts(clock(q.Now))
}

// rows returns the number of the policy's keys that are stored and not idle.
func (m *Store) rows(q *store.Query) (n int64) {
	now := clock(q.Now)
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for k, e := range s.entries {
			if k.algorithm == q.Algorithm && k.policy == q.Policy && k.key != store.RestKey && e.counts(now) {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// counts reports whether the entry is a row for a bound.
func (e *entry) counts(now int64) bool { return !e.blank && e.idleAt() > now }
