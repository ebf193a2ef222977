package limiter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
)

// memoryHolds are the holds of one process. Its lock comes before those of the
// shards.
type memoryHolds struct {
	mu           sync.Mutex
	byID         map[string]*held
	byIdempotent map[idempotent]*held
	open         map[entryKey]map[*held]bool
	sweepAt      int
}

// idempotent is what an admission is remembered under.
type idempotent struct {
	entryKey
	key string
}

func newMemoryHolds() memoryHolds {
	return memoryHolds{
		byID: map[string]*held{}, byIdempotent: map[idempotent]*held{}, open: map[entryKey]map[*held]bool{}, sweepAt: minSweep,
	}
}

func (h *held) entryKey() entryKey { return entryKey{h.algorithm, h.policy, h.key} }

func (m *memory) reserve(ctx context.Context, q *question, h *holding) (outcome, error) {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	now := memoryClock(q.now)
	m.forget(now)
	_, k := m.shard(q)
	if h.idempotency != nil {
		if before := m.holds.byIdempotent[idempotent{k, *h.idempotency}]; before != nil {
			if before.forgetAt > now {
				c := *before
				return outcome{before: &c}, nil
			}
			m.drop(before, now)
		}
	}
	if !q.possible() {
		return m.get(ctx, q)
	}
	o, err := m.take(ctx, q)
	if err != nil || o.granted <= 0 {
		return o, err
	}
	n := &held{
		rules: q.rules, limit: h.limit, id: h.id, state: h.state, policy: q.policy, key: q.key, idempotency: h.idempotency,
		reserved: q.units, units: q.units, level: o.view.level(&q.rules, o.updatedAt),
		countedAt: o.updatedAt, createdAt: o.updatedAt, expiresAt: o.updatedAt + h.ttl, forgetAt: o.updatedAt + h.ttl + h.remember,
	}
	switch v := o.view.(type) {
	case *bucket:
		n.countedAt = v.leakedAt
	case *fixedWindow:
		n.endsAt = v.endsAt
	case *slidingCounter:
		n.endsAt = v.endsAt
	}
	m.holds.byID[n.id] = n
	if n.state == stateHeld {
		if m.holds.open[k] == nil {
			m.holds.open[k] = map[*held]bool{}
		}
		m.holds.open[k][n] = true
	}
	if n.idempotency != nil {
		m.holds.byIdempotent[idempotent{k, *n.idempotency}] = n
	}
	return o, nil
}

func (m *memory) settle(_ context.Context, c *settlement) (settled, error) {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	h, now := m.holds.byID[c.id], memoryClock(c.now)
	if h == nil || h.state == stateSpent || h.forgetAt <= now && c.state != stateExpired {
		return settled{}, fmt.Errorf("%w: %s", ErrNoHold, quote(c.id))
	}
	return m.end(h, c.state, c.units, now), nil
}

// end brings a hold to a state, and the key to what is counted of it then. The
// holds' lock is held.
func (m *memory) end(h *held, state string, units float64, now int64) settled {
	s := settled{held: *h, now: now}
	s.changed = h.state == stateHeld && (state != stateExpired || h.expiresAt <= now) || h.state == stateExpired && state == stateSettled
	if !s.changed {
		return s
	}
	back := 0.0
	if units != h.units && (h.algorithm != FixedWindow || h.endsAt > now) {
		q := question{rules: h.rules, policy: h.policy, key: h.key, now: &now}
		s.outcome, _ = m.with(&q, true, func(e *entry, now, at int64) float64 {
			fresh := e.rules.capacity == 0 // or only a block made it
			if fresh {
				e.rules = h.rules
			}
			back = e.state.settle(&e.rules, now, at, h, units, fresh)
			s.known = h.algorithm != FixedWindow || e.state.(*fixedWindow).endsAt == h.endsAt
			if s.known {
				e.settled(h, at)
			}
			return 0
		})
	}
	s.freed = back > 0
	h.state = state
	delete(m.holds.open[h.entryKey()], h)
	if len(m.holds.open[h.entryKey()]) == 0 {
		delete(m.holds.open, h.entryKey())
	}
	if state == stateSettled {
		h.units = units
	} else {
		h.units -= back
	}
	return s
}

// settled notes that the state is at at now, and how long it holds something
// after a hold of it was settled.
func (e *entry) settled(h *held, at int64) {
	e.updatedAt = at
	e.expiresAt = max(e.expiresAt, e.blockedUntil, at+max(h.hold, e.lasts(&e.rules, at)))
}

func (m *memory) due(_ context.Context, q *question) ([]string, error) {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	now := memoryClock(q.now)
	var due []*held
	for h := range m.holds.open[entryKey{q.algorithm, q.policy, q.key}] {
		if h.expiresAt <= now {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *held) int {
		return cmp.Or(cmp.Compare(a.expiresAt, b.expiresAt), cmp.Compare(a.units, b.units))
	})
	ids := make([]string, len(due))
	for i, h := range due {
		ids[i] = h.id
	}
	return ids, nil
}

func (m *memory) nextDue(context.Context) (int64, error) {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	now, wait := memoryClock(nil), int64(noHold)
	for _, open := range m.holds.open {
		for h := range open {
			wait = min(wait, h.expiresAt-now)
		}
	}
	return wait, nil
}

// forget drops what is not remembered any longer whenever the holds have doubled.
// The holds' lock is held.
func (m *memory) forget(now int64) {
	if len(m.holds.byID) < m.holds.sweepAt {
		return
	}
	for _, h := range m.holds.byID {
		if h.forgetAt <= now {
			m.drop(h, now)
		}
	}
	m.holds.sweepAt = max(minSweep, 2*len(m.holds.byID))
}

// drop forgets one hold, and gives back what it still counts.
func (m *memory) drop(h *held, now int64) {
	m.end(h, stateExpired, 0, now)
	delete(m.holds.byID, h.id)
	if h.idempotency != nil {
		delete(m.holds.byIdempotent, idempotent{h.entryKey(), *h.idempotency})
	}
}

func (m *memory) open(_ context.Context, q *question, endsAt int64) (s Statement, err error) {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	for h := range m.holds.open[entryKey{q.algorithm, q.policy, q.key}] {
		if endsAt == 0 || h.endsAt == endsAt {
			s.Holds++
			s.Held += h.units
		}
	}
	return s, nil
}
