// Package lease keeps blocks of units that this process has taken from the rows of hot keys,
// and grants them from memory for a short time: the life of a lease.
//
// A unit is granted only within the life of its block, which begins before the statement that
// took it is sent. So each unit was counted at most one life before its use. See
// docs/leases.md for the bound that follows.
package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Clock returns the time in nanoseconds by two clocks: one that is never set, and the wall's,
// which also counts the time for which a machine was suspended. A life ends by the first of them.
type Clock func() (steady, wall int64)

// SystemClock returns this machine's Clock.
func SystemClock() Clock {
	start := time.Now()
	return func() (steady, wall int64) {
		now := time.Now()
		return int64(now.Sub(start)), now.UnixNano()
	}
}

// Options sets up a Table. There are no defaults.
type Options[K comparable, V any] struct {
	Keys  int   // the most blocks, and keys whose use is remembered
	Least int64 // the fewest units of a block
	// Share: a block has at most this part of the units that remain. So the last ones are decided
	// one by one, and all processes reach them.
	Share int64
	Clock Clock
	// Clone returns a copy of a key that shares no memory with a caller's.
	Clone func(K) K
	// After calls a function later, on a goroutine.
	After func(time.Duration, func())
	// Return gives units back that a block held when it ended, age nanoseconds old.
	Return func(b *Block[K, V], units, age int64)
}

// Table has the blocks of a process by key, at most one new and one old for each. It is safe
// for concurrent use. Without blocks it has no timer.
type Table[K comparable, V any] struct {
	Options[K, V]
	blocks sync.Map // of *Block[K, V] by K: the newest
	live   atomic.Int64
	seed   maphash.Seed
	drops  [256]atomic.Uint64 // by share of the keys

	mu   sync.Mutex
	uses *lru.Cache[K, *use]
}

// use is what is known of a key's requests.
type use struct {
	renewal atomic.Int32 // idle, renewing or refused
	// Guarded by Table.mu: the units that rows granted since a time.
	since, units int64
}

const (
	idle int32 = iota
	renewing
	refused // until a row grants something
)

// New returns a Table without blocks. o.Keys is at least 1.
func New[K comparable, V any](o Options[K, V]) (*Table[K, V], error) {
	uses, err := lru.New[K, *use](o.Keys)
	return &Table[K, V]{Options: o, uses: uses, seed: maphash.MakeSeed()}, err
}

// Block is units of one key that one statement took.
type Block[K comparable, V any] struct {
	Key   K
	Value V

	table *Table[K, V]
	use   *use
	units int64
	left  atomic.Int64 // negative: the block has ended
	old   atomic.Pointer[Block[K, V]]
	moment
	life int64
	held int64 // units that the block before had at that moment: they are used first
	most int64 // units of the next block
	seen int64 // left when the block was last looked at
}

// moment is a reading of a Clock.
type moment struct{ steady, wall int64 }

func (t *Table[K, V]) now() (m moment) {
	m.steady, m.wall = t.Clock()
	return m
}

// since returns the nanoseconds since a moment, by the clock that says more.
func (t *Table[K, V]) since(m moment) int64 {
	now := t.now()
	return max(now.steady-m.steady, now.wall-m.wall)
}

// Age returns the nanoseconds since an attempt began.
func (t *Table[K, V]) Age(a Attempt) int64 { return t.since(a.moment) }

// Lookup returns the newest block of k, or nil.
func (t *Table[K, V]) Lookup(k K) *Block[K, V] {
	if b, ok := t.blocks.Load(k); ok {
		return b.(*Block[K, V])
	}
	return nil
}

// Taken is what Take found.
type Taken struct {
	Left  int64 // units left in both blocks
	Age   int64 // of the newest block, in nanoseconds; it is negative for one that was taken since
	Renew int64 // if above 0, the caller now takes a block of Renew units from the row
}

// Take takes units from the block before b, or else from b. It returns the block that had
// them, or nil.
func (b *Block[K, V]) Take(units int64) (from *Block[K, V], t Taken) {
	if old := b.old.Load(); old != nil {
		if left, age, ok := old.take(units); ok {
			return old, Taken{Left: left + max(0, b.left.Load()), Age: age + old.steady - b.steady}
		}
		if old.left.Load() <= 0 {
			b.old.CompareAndSwap(old, nil)
		}
	}
	left, age, ok := b.take(units)
	if !ok {
		return nil, t
	}
	t.Left, t.Age = left, age
	if left <= b.units/2 && b.use.renewal.CompareAndSwap(idle, renewing) {
		if t.Renew = b.table.size(b.held+b.units-left, age, b.life, min(b.most, 8*b.units)); t.Renew == 0 {
			b.use.renewal.Store(idle)
		}
	}
	return b, t
}

// take takes units from b alone.
func (b *Block[K, V]) take(units int64) (left, age int64, ok bool) {
	for {
		left = b.left.Load()
		if left < units {
			return 0, 0, false
		}
		if b.left.CompareAndSwap(left, left-units) {
			break
		}
	}
	// The process may have been stopped up to here, so the clock is read now.
	if age = b.Age(); age >= b.life {
		b.put(units)
		return 0, 0, false
	}
	return left - units, age, true
}

// Put gives back units that Take took. It reports whether the block can grant them again. It
// never holds more than it began with, also if units are given back twice.
func (b *Block[K, V]) Put(units int64) bool { return b.Age() < b.life && b.put(units) }

func (b *Block[K, V]) put(units int64) bool {
	for {
		left := b.left.Load()
		if left < 0 || left+units > b.units {
			return false
		}
		if b.left.CompareAndSwap(left, left+units) {
			return true
		}
	}
}

// Age returns the nanoseconds since the block's attempt began.
func (b *Block[K, V]) Age() int64 { return b.table.since(b.moment) }

// Left returns the units left in the block.
func (b *Block[K, V]) Left() int64 { return max(0, b.left.Load()) }

// look ends the block if its life is over, if it is used up, or if the key is idle.
func (b *Block[K, V]) look() {
	left := b.left.Load()
	if left > 0 && left != b.seen && b.Age() < b.life {
		b.seen = left
		b.table.After(b.pause(), b.look)
		return
	}
	b.end()
}

// pause is the time between two looks.
func (b *Block[K, V]) pause() time.Duration { return time.Duration(b.life/3 + 1) }

// end ends the block and returns what is left of it.
func (b *Block[K, V]) end() {
	if left := b.close(); left > 0 {
		b.table.Return(b, left, b.Age())
	}
}

// close ends the block and returns the units that it then had, once.
func (b *Block[K, V]) close() (left int64) {
	if left = b.left.Swap(-1); left >= 0 {
		b.table.live.Add(-1)
		b.table.blocks.CompareAndDelete(b.Key, b)
	}
	return left
}

// size returns the units that are used in half a life, at the pace of used units in a time: so a
// block is used up before it ends. It is at most most, and 0 if that is too few.
func (t *Table[K, V]) size(used, during, life, most int64) int64 {
	n := int64(min(float64(most), float64(used)/float64(max(1, during))*float64(life)/2))
	if n < t.Least {
		return 0
	}
	return n
}

// Granted notes units of k that its row granted, and the remaining ones. If take is above 0,
// the caller now takes a block of take units from the row. life is a block's, in nanoseconds.
func (t *Table[K, V]) Granted(k K, units, remaining, life int64) (take int64) {
	now := t.now().steady
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.use(k)
	if now-u.since > life {
		u.since, u.units = now, 0
	}
	u.units += units
	u.renewal.CompareAndSwap(refused, idle)
	if take = t.size(u.units, life, life, remaining/t.Share); take > 0 && (t.Lookup(k) != nil || !u.renewal.CompareAndSwap(idle, renewing)) {
		return 0
	}
	return take
}

// use returns the use of k. t.mu is locked.
func (t *Table[K, V]) use(k K) *use {
	u, ok := t.uses.Get(k)
	if !ok {
		u = &use{since: t.now().steady}
		t.uses.Add(t.Clone(k), u)
	}
	return u
}

// Attempt is a block in the making. Begin one before its statement is sent.
type Attempt struct {
	drops *atomic.Uint64
	seen  uint64
	held  int64
	moment
}

// Begin begins an Attempt for k.
func (t *Table[K, V]) Begin(k K) Attempt {
	d := t.dropsOf(k)
	a := Attempt{drops: d, seen: d.Load(), moment: t.now()}
	if b := t.Lookup(k); b != nil {
		a.held = b.Left()
	}
	return a
}

// Add ends an attempt with a block of units, for a life in nanoseconds since Begin. That many
// units remain in the row. If the key was dropped meanwhile, no unit of the block is granted.
// If there are too many blocks, it is returned.
func (t *Table[K, V]) Add(a Attempt, k K, v V, units, remaining, life int64) {
	b := &Block[K, V]{Key: k, Value: v, table: t, units: units, held: a.held, most: remaining / t.Share, moment: a.moment, life: life, seen: -1}
	b.left.Store(units)
	b.use = t.renewed(k, idle)
	if t.live.Add(1) > int64(t.Keys) {
		b.end()
		return
	}
	if before, ok := t.blocks.Swap(k, b); ok {
		old := before.(*Block[K, V])
		old.old.Store(nil)
		b.old.Store(old)
	}
	if a.drops.Load() != a.seen { // before it was added, or meanwhile
		t.Drop(k)
		return
	}
	t.After(b.pause(), b.look)
}

// Refused ends an attempt that got nothing. The next follows once the row grants something.
func (t *Table[K, V]) Refused(k K) { t.renewed(k, refused) }

// renewed notes how an attempt for k ended.
func (t *Table[K, V]) renewed(k K, how int32) *use {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.use(k)
	u.renewal.Store(how)
	return u
}

// Drop ends the blocks of k, and attempts that have begun, and returns nothing. Call it after
// the statement that makes their units void.
func (t *Table[K, V]) Drop(k K) {
	t.dropsOf(k).Add(1) // before the blocks end: see Add
	if b := t.Lookup(k); b != nil {
		if old := b.old.Load(); old != nil {
			old.close()
		}
		b.close()
	}
}

func (t *Table[K, V]) dropsOf(k K) *atomic.Uint64 {
	return &t.drops[maphash.Comparable(t.seed, k)%uint64(len(t.drops))]
}

// End ends all blocks and returns what is left of them.
func (t *Table[K, V]) End() {
	t.blocks.Range(func(_, v any) bool {
		b := v.(*Block[K, V])
		if old := b.old.Load(); old != nil {
			old.end()
		}
		b.end()
		return true
	})
}

// Len returns the number of blocks.
func (t *Table[K, V]) Len() int { return int(t.live.Load()) }
