package limiter

import (
	"context"
	"hash/maphash"
	"sync"
	"time"
)

// memory is the store of one process. It decides as the statements do, step
// by step, and is the model that they are held to.
type memory struct {
	seed   maphash.Seed
	shards [64]shard
	holds  memoryHolds
}

// shard holds the keys of one hash, and forgets the idle ones whenever it has
// grown to twice what was left of it the last time.
type shard struct {
	mu      sync.Mutex
	entries map[entryKey]*entry
	sweepAt int
}

type entryKey struct {
	algorithm   Algorithm
	policy, key string
}

type entry struct {
	state                              state
	rules                              rules // as of the last decision
	updatedAt, blockedUntil, expiresAt int64
}

func newEntry(a Algorithm, now int64) entry {
	return entry{state: newState(a, now), rules: rules{leak: 1, tick: 1, period: 1}, updatedAt: now}
}

const minSweep = 64 // entries in a shard before it looks for idle ones

func newMemory() *memory {
	m := &memory{seed: maphash.MakeSeed(), holds: newMemoryHolds()}
	for i := range m.shards {
		m.shards[i] = shard{entries: map[entryKey]*entry{}, sweepAt: minSweep}
	}
	return m
}

func (m *memory) source() Source { return SourceMemory }

func (m *memory) shard(q *question) (*shard, entryKey) {
	return &m.shards[m.shardOf(q)], entryKey{q.algorithm, q.policy, q.key}
}

func (m *memory) shardOf(q *question) uint64 {
	return maphash.Comparable(m.seed, entryKey{q.algorithm, q.policy, q.key}) % uint64(len(m.shards))
}

// with runs f on the key's entry, with the clock as read and the one that
// never moves back; f returns how much was granted, in asks of q.cost. A key
// without an entry gets a new one, which is kept if keep.
func (m *memory) with(q *question, keep bool, f func(e *entry, now, at int64) float64) (outcome, error) {
	s, k := m.shard(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := memoryClock(q.now)
	e := s.entries[k]
	if e == nil {
		n := newEntry(q.algorithm, now)
		e = &n
		if keep {
			s.sweep(now)
			s.entries[k] = e
		}
	}
	at := max(e.updatedAt, now)
	return e.outcome(q, now, at, f(e, now, at)), nil
}

func (e *entry) outcome(q *question, now, at int64, granted float64) outcome {
	o := outcome{granted: granted, now: now, updatedAt: at, blockedUntil: e.blockedUntil}
	if b, ok := e.state.(*bucket); ok {
		o.ticket = b.ticket
	}
	o.view = e.state.seen(q.room, q.rest(float64(q.cost*granted)))
	return o
}

func memoryClock(now *int64) int64 {
	if now != nil {
		return *now
	}
	return time.Now().UnixMicro()
}

// sweep makes room for a new entry.
func (s *shard) sweep(now int64) {
	if len(s.entries) < s.sweepAt {
		return
	}
	for k, e := range s.entries {
		if e.expiresAt <= now {
			delete(s.entries, k)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.entries))
}

// advance brings the state to at, to be added to.
func (e *entry) advance(r *rules, now, at int64) {
	e.rules = *r
	e.state.advance(r, now, at)
	if l, ok := e.state.(*slidingLog); ok {
		l.rebase(r)
	}
}

// moved notes that the state is at at now, and holds something until then plus
// the policy's hold at most.
func (e *entry) moved(q *question, at int64) {
	e.updatedAt = at
	e.expiresAt = max(e.expiresAt, e.blockedUntil, at+e.lasts(&q.rules, at))
}

// lasts is how long the state, which is at at, holds something at most: the
// policy's hold, or longer where more was spent than there was.
func (e *entry) lasts(r *rules, at int64) int64 {
	if b, ok := e.state.(*bucket); ok && b.units > r.capacity {
		return max(r.hold, r.drain(b.units))
	}
	return r.hold
}

func (m *memory) take(_ context.Context, q *question) (outcome, error) {
	return m.with(q, true, func(e *entry, now, at int64) (granted float64) {
		e.advance(&q.rules, now, at)
		fit := free(q.room, e.state.level(&q.rules, at), q.cost)
		switch {
		case e.blockedUntil > at:
			granted = blocked
		case fit >= 1:
			granted = min(q.count, fit)
			e.state.put(at, float64(q.cost*granted))
		case q.blockFor > 0:
			e.blockedUntil = at + q.blockFor
		}
		e.moved(q, at)
		return granted
	})
}

func (m *memory) fill(_ context.Context, q *question) (outcome, error) {
	r := q.rules
	r.capacity = r.burst
	return m.with(q, true, func(e *entry, now, at int64) float64 {
		e.advance(&r, now, at)
		granted := e.state.fill(&r, at, q.units)
		e.moved(q, at)
		return granted
	})
}

func (m *memory) refund(_ context.Context, q *question) (outcome, error) {
	return m.with(q, false, func(e *entry, now, at int64) float64 {
		e.rules, e.updatedAt = q.rules, at
		return e.state.refund(&q.rules, now, at, q.units)
	})
}

func (m *memory) get(_ context.Context, q *question) (o outcome, err error) {
	_, err = m.with(q, false, func(e *entry, now, at int64) float64 {
		seen := *e // reading leaves the entry as it is
		seen.state = e.state.clone()
		seen.state.advance(&q.rules, now, at)
		o = seen.outcome(q, now, at, 0)
		return 0
	})
	return o, err
}

func (m *memory) block(_ context.Context, q *question, forUs int64) error {
	_, err := m.with(q, true, func(e *entry, _, at int64) float64 {
		e.blockedUntil = max(e.blockedUntil, at+forUs)
		e.expiresAt = max(e.expiresAt, e.blockedUntil)
		return 0
	})
	return err
}

func (m *memory) unblock(_ context.Context, q *question, until int64) error {
	_, err := m.with(q, false, func(e *entry, _, _ int64) float64 {
		if until == 0 || until == e.blockedUntil {
			e.blockedUntil = 0
		}
		return 0
	})
	return err
}

func (m *memory) reset(_ context.Context, q *question) error {
	m.holds.mu.Lock()
	defer m.holds.mu.Unlock()
	s, k := m.shard(q)
	for h := range m.holds.open[k] { // nothing of them is counted any more
		h.units = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, k)
	return nil
}

func (m *memory) leave(_ context.Context, q *question, ticket int64) error {
	_, err := m.with(q, false, func(e *entry, now, at int64) float64 {
		if b := e.state.(*bucket); b.ticket == ticket {
			b.refund(&q.rules, now, at, q.units)
			e.updatedAt = at
		}
		return 0
	})
	return err
}
