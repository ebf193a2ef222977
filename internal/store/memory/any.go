package memory

import (
	"slices"

	"github.com/pglimit/pglimit/internal/store"
)

// takeAny takes units from some of the groups, as store.Give divides them, with their shards
// locked in one order. The others change as by a denied take, as their rows do in a database.
func (m *Store) takeAny(groups []*store.Group, partial bool) (bool, error) {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g *store.Group) bool { return g.Full })
	if len(groups) == 0 {
		return partial, nil
	}
	return m.claiming(groups, func(claimed *int) (bool, int) { return m.tryAny(groups, partial, claimed) })
}

// tryAny is takeAny with a number of claimed places: see tryAll.
func (m *Store) tryAny(groups []*store.Group, partial bool, claimed *int) (allowed bool, missing int) {
	defer m.lock(groups)()
	if missing = m.missing(groups, claimed, func(*store.Group) bool { return true }); missing > 0 {
		return false, missing
	}
	now := clock(groups[0].Now)
	next := make([]row, len(groups))
	for i, g := range groups {
		e := m.copyOf(&g.Query, now)
		at := max(e.updatedAt, now)
		blocked := e.blockedUntil > at
		if !blocked {
			e.decidedAt = at
		}
		e.state.Deny(&g.Rules, now, at)
		e.rules, e.updatedAt = g.Rules, at
		g.Outcome = e.outcome(&g.Query, &g.Rules, now, at, 0)
		g.Outcome.Blocked = blocked
		next[i] = e
	}
	allowed = store.Give(groups, partial)
	for i, g := range groups {
		e, o := &next[i], &g.Outcome
		if g.Given > 0 {
			e.state.Advance(&g.Rules, now, o.UpdatedAt)
			e.state.Put(o.UpdatedAt, g.Given)
			o.Granted = 1
		}
		o.View = e.state.Seen(&g.Rules, now, o.UpdatedAt, g.Room, g.Need-g.Given)
		m.keep(&g.Query, *e, claimed)
	}
	for _, g := range groups {
		s, _ := m.shard(&g.Query)
		m.tidy(s, now)
	}
	return allowed, 0
}
