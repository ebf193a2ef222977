package limiter

import (
	"context"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// takeAll decides all joints at one moment: their shards are locked, in one
// order. A denial leaves every entry as it is, but for the blocks that begin.
func (m *memory) takeAll(_ context.Context, joints []*joint, possible bool) (bool, error) {
	defer m.lock(joints)()
	now := memoryClock(joints[0].q.now)
	next := make([]entry, len(joints))
	for i, j := range joints {
		e := m.copyOf(&j.q, now)
		at := max(e.updatedAt, now)
		e.state.Advance(&j.q.Rules, now, at)
		j.outcome = outcome{now: now, updatedAt: at, blockedUntil: e.blockedUntil, view: e.state.Seen(&j.q.Rules, now, at, j.q.room, j.q.cost)}
		j.judge(e.blockedUntil > at)
		next[i] = e
	}
	allowed := possible && every(joints, granted)
	for i, j := range joints {
		e, at := &next[i], j.outcome.updatedAt
		switch {
		case allowed:
			e.state.Put(at, j.q.cost)
			e.rules, e.updatedAt = j.q.Rules, at
			j.outcome.view = e.state.Seen(&j.q.Rules, now, at, j.q.room, 0)
			if b, ok := e.state.(*algorithm.Bucket); ok {
				j.outcome.ticket = b.Ticket
			}
			m.keep(&j.q, now, *e)
			continue
		case possible && j.outcome.granted == 0 && j.q.BlockFor > 0:
			j.outcome.blockedUntil = at + j.q.BlockFor
			e := m.copyOf(&j.q, now)
			e.blockedUntil = max(e.blockedUntil, at+j.q.BlockFor)
			m.keep(&j.q, now, e)
		}
		j.seen(func(need float64) algorithm.View { return e.state.Seen(&j.q.Rules, now, at, j.q.Capacity, need) })
	}
	return allowed, nil
}

// lock locks the joints' shards; what it returns unlocks them.
func (m *memory) lock(joints []*joint) (unlock func()) {
	var mine [len(m.shards)]bool
	for _, j := range joints {
		mine[m.shardOf(&j.q)] = true
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

// copyOf is a copy of the key's entry, or a new one. Its shard is locked.
func (m *memory) copyOf(q *question, now int64) entry {
	s, k := m.shard(q)
	if e := s.entries[k]; e != nil {
		c := *e
		c.state = e.state.Clone()
		return c
	}
	return newEntry(q.algorithm, now)
}

// keep makes e the key's entry. Its shard is locked.
func (m *memory) keep(q *question, now int64, e entry) {
	s, k := m.shard(q)
	if s.entries[k] == nil {
		s.sweep(now)
	}
	s.entries[k] = &e
}

func (n noTx) takeAll(context.Context, []*joint, bool) (bool, error) { return false, n.deny() }
