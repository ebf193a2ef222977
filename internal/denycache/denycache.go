// Package denycache remembers denials for a moment, so that repeated requests for a
// denied key cost the database nothing.
package denycache

import (
	"hash/maphash"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
)

// Cache stores a value of type V for each of the most recently used keys. It never keeps
// a value that was decided before a Forget of its key. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	values *lru.Cache[K, V]
	// forgets counts the Forgets of each share of the keys.
	forgets [256]atomic.Uint64
	seed    maphash.Seed
}

// New returns a Cache of up to keys keys, at least 1. The least recently used key is
// evicted.
func New[K comparable, V any](keys int) (*Cache[K, V], error) {
	values, err := lru.New[K, V](keys)
	if err != nil {
		return nil, err
	}
	return &Cache[K, V]{values: values, seed: maphash.MakeSeed()}, nil
}

// Lookup returns the value of k and whether there is one.
func (c *Cache[K, V]) Lookup(k K) (V, bool) { return c.values.Get(k) }

// Len returns the number of keys that have a value.
func (c *Cache[K, V]) Len() int { return c.values.Len() }

// Attempt is a decision in progress; see Keep. The zero value is none.
type Attempt struct {
	forgets *atomic.Uint64
	seen    uint64
}

// Begin returns an Attempt at a decision on k. Call it before the decision is sent, and
// Keep after its answer.
func (c *Cache[K, V]) Begin(k K) Attempt {
	f := c.share(k)
	return Attempt{forgets: f, seen: f.Load()}
}

// Valid reports whether there is an attempt.
func (a Attempt) Valid() bool { return a.forgets != nil }

// Keep stores v under k, unless the key was forgotten since the attempt began.
func (c *Cache[K, V]) Keep(a Attempt, k K, v V) {
	if a.forgets.Load() != a.seen {
		return
	}
	c.values.Add(k, v)
	if a.forgets.Load() != a.seen { // while v was added
		c.values.Remove(k)
	}
}

// Forget removes k. Call it after the statement that gave something back.
func (c *Cache[K, V]) Forget(k K) {
	c.share(k).Add(1) // before Remove, see Keep
	c.values.Remove(k)
}

func (c *Cache[K, V]) share(k K) *atomic.Uint64 {
	return &c.forgets[maphash.Comparable(c.seed, k)%uint64(len(c.forgets))]
}
