package memory

import (
	"container/heap"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// shard has the keys of one hash. It forgets idle ones each time it has doubled since the
// last time, and one at a time while the Store is full.
type shard struct {
	mu      sync.Mutex
	entries map[entryKey]*entry
	idle    idleOrder
	sweepAt int
	// soonest is the checkAt of the first entry in idle, to be read without the lock.
	soonest atomic.Int64
}

type entryKey struct {
	algorithm   algorithm.Name
	policy, key string
}

// entry is a stored key. It is idle if it decides as a missing one would and has no open
// reservation that has not expired.
type entry struct {
	row
	key entryKey
	// blank entries have been Reset. They decide as missing ones, and stay for their
	// reservations.
	blank         bool
	open          int   // reservations
	reservedUntil int64 // when the last of them expires; 0 without any
	// checkAt is at most idleAt. It grows only when the entry is looked at, so that most
	// decisions leave the order alone.
	checkAt int64
	place   int // in idle
}

// row is the part of an entry that decisions change.
type row struct {
	state                   algorithm.State
	rules                   algorithm.Rules // as of the last decision
	updatedAt, blockedUntil int64
	// decidedAt is the time of the last decision that found no block, so of the denial that
	// began the block; 0 if an operator blocked the key.
	decidedAt int64
}

func newRow(a algorithm.Name, now int64) row {
	if a == algorithm.Attempts {
		return row{state: &tries{rows: map[string]*tried{}}, updatedAt: now}
	}
	if a == algorithm.Concurrency {
		return row{state: new(held), updatedAt: now}
	}
	return row{state: algorithm.New(a.Family(), now), rules: algorithm.Rules{Leak: 1, Tick: 1, Period: 1}, updatedAt: now}
}

// idleAt returns the time from which the entry is idle.
func (e *entry) idleAt() int64 {
	return max(e.state.IdleAt(&e.rules), e.updatedAt, e.blockedUntil, e.reservedUntil)
}

const minSweep = 64 // entries in a shard before it looks for idle ones

// add stores a new entry, for which the caller has claimed a place.
func (s *shard) add(e *entry) {
	e.key.key = strings.Clone(e.key.key) // it may be a part of a large text
	e.checkAt = e.idleAt()
	s.entries[e.key] = e
	heap.Push(&s.idle, e)
	s.note()
}

// changed restores the order after a change to an entry.
func (s *shard) changed(e *entry) {
	if at := e.idleAt(); at < e.checkAt {
		e.checkAt = at
		heap.Fix(&s.idle, e.place)
		s.note()
	}
}

// remove forgets an entry. Its place is free.
func (s *shard) remove(e *entry) {
	delete(s.entries, e.key)
	heap.Remove(&s.idle, e.place)
	s.note()
}

// reset forgets what an entry has counted.
func (s *shard) reset(e *entry, a algorithm.Name) (removed bool) {
	if e.open == 0 {
		s.remove(e)
		return true
	}
	e.row, e.blank = newRow(a, 0), true
	s.changed(e)
	return false
}

// sweep forgets all idle entries and returns their number.
func (s *shard) sweep(now int64) (removed int) {
	kept := s.idle[:0]
	for _, e := range s.idle {
		if e.checkAt = e.idleAt(); e.checkAt <= now {
			delete(s.entries, e.key)
			continue
		}
		e.place = len(kept)
		kept = append(kept, e)
	}
	removed = len(s.idle) - len(kept)
	clear(s.idle[len(kept):])
	s.idle = kept
	heap.Init(&s.idle)
	s.note()
	s.sweepAt = max(minSweep, 2*len(s.entries))
	return removed
}

// evict forgets the entry that has been idle for longest. It returns false if none has,
// or if it found only that the first one was used since.
func (s *shard) evict(now int64) bool {
	if len(s.idle) == 0 || s.idle[0].checkAt > now {
		return false
	}
	e := s.idle[0]
	if at := e.idleAt(); at > e.checkAt {
		e.checkAt = at
		heap.Fix(&s.idle, 0)
		s.note()
		return false
	}
	s.remove(e)
	return true
}

func (s *shard) note() {
	if len(s.idle) > 0 {
		s.soonest.Store(s.idle[0].checkAt)
	} else {
		s.soonest.Store(math.MaxInt64)
	}
}

// claim takes a place for a new key. If none is free, the key that has been idle for
// longest makes room. The error is a store.ErrFull. No shard is locked.
//
// Each step that evicts nothing has found an entry that was used since the last look, so
// the steps are no more than the decisions.
func (m *Store) claim(now int64) error {
	for !m.claimFree() {
		first, soonest := 0, int64(math.MaxInt64)
		for i := range m.shards {
			if at := m.shards[i].soonest.Load(); at < soonest {
				first, soonest = i, at
			}
		}
		if soonest > now {
			return m.full
		}
		s := &m.shards[first]
		s.mu.Lock()
		evicted := s.evict(now)
		s.mu.Unlock()
		if evicted {
			return nil
		}
	}
	return nil
}

// claimFree takes a place if one is free.
func (m *Store) claimFree() bool {
	for {
		free := m.free.Load()
		if free <= 0 {
			return false
		}
		if m.free.CompareAndSwap(free, free-1) {
			return true
		}
	}
}

// entry locks the key's shard and returns its entry, or nil. With keep it has claimed a
// place if the entry is nil. After an error the shard is not locked.
func (m *Store) entry(s *shard, k entryKey, q *store.Query, keep bool) (e *entry, now int64, err error) {
	s.mu.Lock()
	now = clock(q.Now)
	if e = s.entries[k]; e != nil || !keep || m.claimFree() {
		return e, now, nil
	}
	s.mu.Unlock()
	if err := m.claim(now); err != nil {
		return nil, now, err
	}
	s.mu.Lock()
	if e = s.entries[k]; e != nil { // made meanwhile
		m.free.Add(1)
	}
	return e, clock(q.Now), nil
}

// idleOrder is a heap of entries, the first to be idle first.
type idleOrder []*entry

func (o idleOrder) Len() int           { return len(o) }
func (o idleOrder) Less(i, j int) bool { return o[i].checkAt < o[j].checkAt }
func (o idleOrder) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].place, o[j].place = i, j
}

func (o *idleOrder) Push(x any) {
	e := x.(*entry)
	e.place = len(*o)
	*o = append(*o, e)
}

func (o *idleOrder) Pop() any {
	last := len(*o) - 1
	e := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return e
}
