package limiter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/pglimit/pglimit/internal/algorithm"
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
	var before *held
	if h.idempotency != nil {
		before = m.holds.byIdempotent[idempotent{k, *h.idempotency}]
	}
	switch {
	case before != nil && before.forgetAt > now && !before.overdue(now):
		c := *before
		return outcome{before: &c}, nil
	case !q.possible():
		return m.get(ctx, q)
	case before != nil && before.forgetAt <= now:
		m.drop(before, now)
	case before != nil:
		m.end(before, stateExpired, 0, now)
	}
	o, err := m.take(ctx, q)
	if err != nil || o.granted <= 0 {
		return o, err
	}
	n := &held{
		Rules: q.Rules, algorithm: q.algorithm, limit: h.limit, id: h.id, state: h.state, policy: q.policy, key: q.key, idempotency: h.idempotency,
		reserved: q.units, units: q.units, level: o.view.Level(&q.Rules, o.updatedAt),
		countedAt: o.updatedAt, createdAt: o.updatedAt, expiresAt: o.updatedAt + h.ttl, forgetAt: o.updatedAt + h.ttl + h.remember,
	}
	if g := o.view.Counted(o.updatedAt); g.At != 0 {
		n.countedAt = g.At
	} else {
		n.endsAt = g.EndsAt
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

// overdue tells whether the hold is open and has expired.
func (h *held) overdue(now int64) bool { return h.state == stateHeld && h.expiresAt <= now }

// end brings a hold to a state, and the key to what is counted of it then. The
// holds' lock is held.
func (m *memory) end(h *held, state string, units float64, now int64) settled {
	s := settled{held: *h, now: now}
	s.changed = h.state == stateHeld && (state != stateExpired || h.expiresAt <= now) || h.state == stateExpired && state == stateSettled
	back := 0.0
	moves := s.changed && units != h.units && (h.algorithm != FixedWindow || h.endsAt > now)
	q := question{Rules: h.Rules, algorithm: h.algorithm, policy: h.policy, key: h.key, now: &now}
	_, _ = m.with(&q, moves, func(e *entry, now, at int64) float64 {
		if moves {
			fresh := e.rules.Capacity == 0 // or only a block made it
			if fresh {
				e.rules = h.Rules
			}
			back = e.state.Settle(&e.rules, now, at, algorithm.Held{Rules: h.Rules, Units: h.units, CountedAt: h.countedAt, EndsAt: h.endsAt}, units, fresh)
			e.updatedAt = at
		}
		s.outcome = e.standing(&q, now, at, 0)
		return 0
	})
	if !s.changed {
		return s
	}
	s.freed = back > 0
	h.state = state
	delete(m.holds.open[h.entryKey()], h)
	if len(m.holds.open[h.entryKey()]) == 0 {
		delete(m.holds.open, h.entryKey())
	}
	if state == stateSettled {
		h.units = units
		return s
	}
	h.units -= back
	if h.idempotency != nil { // what came to nothing may be asked for again
		delete(m.holds.byIdempotent, idempotent{h.entryKey(), *h.idempotency})
		h.idempotency = nil
	}
	return s
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

func (m *memory) statement(ctx context.Context, q *question) (s standing, err error) {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	if s.outcome, err = m.get(ctx, q); err != nil {
		return s, err
	}
	w, windowed := s.outcome.view.(*algorithm.Window)
	for h := range m.holds.open[entryKey{q.algorithm, q.policy, q.key}] {
		if !windowed || h.endsAt == w.EndsAt && h.endsAt > s.outcome.now {
			s.holds++
			s.held += h.units
		}
	}
	return s, nil
}
