package keybound

import (
	"sync/atomic"
	"time"
)

// known remembers until when rows are surely there: at most 524,288, in 4 MB. A row that is
// forgotten early costs a statement. It is safe for concurrent use, without a lock.
//
// A row is eight bytes in one of the eight places of a cache line, which its hash selects: the hash's first 36 bits,
// and the end in ticks. Two rows are mistaken for one if 52 bits of their hashes are equal; the
// seed is random, so nobody can look for such keys.
type known struct {
	sets atomic.Pointer[[1 << setBits][8]atomic.Uint64]
}

const (
	setBits  = 16
	tickBits = 28 // 310 days; then they begin anew
	tick     = int64(100 * time.Millisecond)
	ticks    = 1<<tickBits - 1
	longest  = int64(longestKnown)/tick + 1
)

// left returns for how many ticks after now an entry lasts; 0 or less if it is over.
func left(entry uint64, now int64) int64 {
	if n := (int64(entry) - now/tick) & ticks; n <= longest {
		return n
	}
	return 0
}

func (k *known) find(hash uint64) (set *[8]atomic.Uint64, tag uint64) {
	if sets := k.sets.Load(); sets != nil {
		set = &sets[hash&(1<<setBits-1)]
	}
	return set, hash>>tickBits | 1
}

// has reports whether the row with that hash is there at now.
func (k *known) has(hash uint64, now int64) bool {
	set, tag := k.find(hash)
	if set == nil {
		return false
	}
	for i := range set {
		if e := set[i].Load(); e>>tickBits == tag && left(e, now) > 0 {
			return true
		}
	}
	return false
}

// put remembers a row until the time until. It takes the place of the one that ends first.
func (k *known) put(hash uint64, now, until int64) {
	if k.sets.Load() == nil {
		k.sets.CompareAndSwap(nil, new([1 << setBits][8]atomic.Uint64))
	}
	set, tag := k.find(hash)
	place, least := 0, longest+1
	for i := range set {
		e := set[i].Load()
		if e>>tickBits == tag {
			place = i
			break
		}
		if n := left(e, now); n < least {
			place, least = i, n
		}
	}
	set[place].Store(tag<<tickBits | uint64(until/tick)&ticks)
}

// drop forgets a row.
func (k *known) drop(hash uint64, now int64) {
	if set, tag := k.find(hash); set != nil {
		for i := range set {
			if e := set[i].Load(); e>>tickBits == tag {
				set[i].Store(tag<<tickBits | uint64(now/tick)&ticks)
			}
		}
	}
}

// clear forgets all.
func (k *known) clear() { k.sets.Store(nil) }
