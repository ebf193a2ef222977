package postgres

import (
	"fmt"
	"testing"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// bucketOf is a group of a bucket of 100 units after a decision.
func bucketOf(key string, cost, level, granted float64) *store.Group {
	return &store.Group{
		Query:   store.Query{Algorithm: algorithm.TokenBucket, Policy: "p", Key: key, Cost: cost, Rules: algorithm.Rules{Capacity: 100}},
		Outcome: store.Outcome{Granted: granted, UpdatedAt: 1, View: &algorithm.Bucket{Units: level}},
	}
}

// TestHeadroom: a grant is likely if each key had half of its room left, is not known to deny,
// and is asked for little.
func TestHeadroom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		after *store.Group
		cost  float64
		want  bool
	}{
		{"half free", bucketOf("k", 1, 50, 1), 25, true},
		{"less than half free", bucketOf("k", 1, 50.1, 1), 1, false},
		{"more than a quarter asked", bucketOf("k", 1, 0, 1), 25.1, false},
		{"denied", bucketOf("k", 60, 45, 0), 1, false},
		{"another key", bucketOf("l", 1, 0, 1), 1, false},
	} {
		m := newHeadroom()
		m.note([]*store.Group{bucketOf("k", 1, 0, 1)})
		m.note([]*store.Group{c.after})
		ask := bucketOf("k", c.cost, 0, 0)
		if c.what == "another key" {
			m = newHeadroom()
			m.note([]*store.Group{c.after})
		}
		if got := m.likely([]*store.Group{ask}); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
		if m.likely([]*store.Group{ask, bucketOf("unknown", 1, 0, 0)}) {
			t.Errorf("%s, with an unknown key: likely", c.what)
		}
		ask.Contended = true
		if m.likely([]*store.Group{ask}) {
			t.Errorf("%s, with a denial of the last seconds: likely", c.what)
		}
	}
	blocked := bucketOf("k", 1, 0, 1)
	blocked.Outcome.BlockedUntil = 2
	m := newHeadroom()
	m.note([]*store.Group{bucketOf("k", 1, 0, 1)})
	m.note([]*store.Group{blocked})
	if m.likely([]*store.Group{bucketOf("k", 1, 0, 0)}) {
		t.Error("a blocked key: likely")
	}
	var none *headroom
	none.note([]*store.Group{blocked})
	if none.likely(nil) {
		t.Error("in a transaction: likely")
	}
}

// TestRoomOfManyKeys: more keys than there are places displace each other. A key that displaced
// another does not get the other's answer.
func TestRoomOfManyKeys(t *testing.T) {
	t.Parallel()
	m := newHeadroom()
	const n = 100_000
	likely := func() (count int) {
		for i := range n {
			if m.likely([]*store.Group{bucketOf(fmt.Sprint(i), 1, 0, 0)}) {
				count++
			}
		}
		return count
	}
	for i := range n {
		m.note([]*store.Group{bucketOf(fmt.Sprint("other ", i), 1, 0, 1)})
	}
	if count := likely(); count > 0 {
		t.Errorf("%d unknown keys are likely", count)
	}
	for i := range n {
		m.note([]*store.Group{bucketOf(fmt.Sprint(i), 1, 0, 1)})
	}
	all := len(m.keys) * len(m.keys[0])
	if count := likely(); count < all*9/10 || count > all {
		t.Errorf("%d keys are remembered in %d places", count, all)
	}
	m = newHeadroom() // keys of one request rarely displace each other
	var groups []*store.Group
	for i := range 100 {
		groups = append(groups, bucketOf(fmt.Sprint(i), 1, 0, 1))
	}
	for range 3 { // with another seed the places are others
		if m.note(groups); m.likely(groups) {
			return
		}
		m = newHeadroom()
	}
	t.Error("100 keys displace each other")
}
