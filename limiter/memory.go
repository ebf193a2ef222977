package limiter

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
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
	state                   algorithm.State
	rules                   algorithm.Rules // as of the last decision
	updatedAt, blockedUntil int64
}

func newEntry(a Algorithm, now int64) entry {
	return entry{state: algorithm.New(a.family(), now), rules: algorithm.Rules{Leak: 1, Tick: 1, Period: 1}, updatedAt: now}
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
	return e.outcome(q, &q.Rules, now, at, f(e, now, at)), nil
}

// outcome tells how the key stands by rules r.
func (e *entry) outcome(q *question, r *algorithm.Rules, now, at int64, granted float64) outcome {
	o := outcome{granted: granted, now: now, updatedAt: at, blockedUntil: e.blockedUntil}
	if b, ok := e.state.(*algorithm.Bucket); ok {
		o.ticket = b.Ticket
	}
	o.view = e.state.Seen(r, now, at, q.room, q.rest(float64(q.cost*granted)))
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
		if e.idleAt() <= now {
			delete(s.entries, k)
		}
	}
	s.sweepAt = max(minSweep, 2*len(s.entries))
}

// idleAt is from when the entry holds nothing: it decides as none does then.
func (e *entry) idleAt() int64 { return max(e.state.IdleAt(&e.rules), e.updatedAt, e.blockedUntil) }

func (m *memory) take(_ context.Context, q *question) (outcome, error) {
	return m.with(q, true, func(e *entry, now, at int64) (granted float64) {
		fit := algorithm.Fit(q.room, e.state.Used(&q.Rules, now, at), q.cost)
		switch {
		case e.blockedUntil > at:
			granted = blocked
		case fit >= 1 && q.count > 0:
			granted = min(q.count, fit)
			e.state.Advance(&q.Rules, now, at)
			e.state.Put(at, float64(q.cost*granted))
		case q.BlockFor > 0:
			e.blockedUntil = at + q.BlockFor
		}
		if granted <= 0 {
			e.state.Deny(&q.Rules, now, at)
		}
		e.rules, e.updatedAt = q.Rules, at
		return granted
	})
}

func (m *memory) fill(_ context.Context, q *question) (outcome, error) {
	r := q.Rules
	r.Capacity = r.Burst
	return m.with(q, true, func(e *entry, now, at int64) float64 {
		e.rules, e.updatedAt = r, at
		return e.state.Fill(&r, now, at, q.units)
	})
}

func (m *memory) refund(_ context.Context, q *question) (outcome, error) {
	return m.giveBack(q, func(e *entry, now, at int64) float64 { return e.state.Refund(&e.rules, now, at, q.units) })
}

func (m *memory) undo(_ context.Context, q *question, g algorithm.Grant) (outcome, error) {
	return m.giveBack(q, func(e *entry, now, at int64) float64 {
		return e.state.Undo(&e.rules, now, at, g, &q.Rules, q.units)
	})
}

func (m *memory) giveBack(q *question, f func(e *entry, now, at int64) float64) (o outcome, err error) {
	_, err = m.with(q, false, func(e *entry, now, at int64) float64 {
		back := f(e, now, at)
		e.updatedAt = at
		o = e.standing(q, now, at, back)
		return back
	})
	return o, err
}

// standing is outcome for what goes by the entry's own numbers: of a log, how long
// its entries may count.
func (e *entry) standing(q *question, now, at int64, granted float64) outcome {
	r := q.Rules
	if l, ok := e.state.(*algorithm.Log); ok {
		r.Period = l.Keep
	}
	return e.outcome(q, &r, now, at, granted)
}

func (m *memory) get(_ context.Context, q *question) (outcome, error) {
	return m.with(q, false, func(*entry, int64, int64) float64 { return 0 })
}

func (m *memory) block(_ context.Context, q *question, forUs int64) error {
	_, err := m.with(q, true, func(e *entry, _, at int64) float64 {
		e.blockedUntil = max(e.blockedUntil, at+forUs)
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
		if b := e.state.(*algorithm.Bucket); b.Ticket == ticket {
			b.Refund(&e.rules, now, at, q.units)
			e.updatedAt = at
		}
		return 0
	})
	return err
}
