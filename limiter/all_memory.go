package limiter

import "context"

// takeAll decides all joints at one moment: their shards are locked, in one
// order. A denial leaves every entry as it is, but for the blocks that begin.
func (m *memory) takeAll(_ context.Context, joints []*joint, possible bool) (bool, error) {
	defer m.lock(joints)()
	now := memoryClock(joints[0].q.now)
	next := make([]entry, len(joints))
	for i, j := range joints {
		e := m.copyOf(&j.q, now)
		at := max(e.updatedAt, now)
		if possible {
			e.advance(&j.q.rules, now, at)
		} else { // nothing is taken: as Check reads
			e.state.advance(&j.q.rules, now, at)
		}
		j.outcome = outcome{now: now, updatedAt: at, blockedUntil: e.blockedUntil, view: e.state.seen(j.q.room, j.q.cost)}
		j.judge(e.blockedUntil > at)
		next[i] = e
	}
	allowed := possible && every(joints, granted)
	for i, j := range joints {
		e, at := &next[i], j.outcome.updatedAt
		switch {
		case allowed:
			e.state.put(at, j.q.cost)
			e.moved(&j.q, at)
			j.outcome.view = e.state.seen(j.q.room, 0)
			if b, ok := e.state.(*bucket); ok {
				j.outcome.ticket = b.ticket
			}
			m.keep(&j.q, now, *e)
			continue
		case possible && j.outcome.granted == 0 && j.q.blockFor > 0:
			j.outcome.blockedUntil = at + j.q.blockFor
			e := m.copyOf(&j.q, now)
			e.blockedUntil = max(e.blockedUntil, at+j.q.blockFor)
			e.expiresAt = max(e.expiresAt, e.blockedUntil)
			m.keep(&j.q, now, e)
		}
		j.seen(func(need float64) view { return e.state.seen(j.q.capacity, need) })
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
		c.state = e.state.clone()
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
