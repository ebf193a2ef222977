package postgres

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// headroom remembers which keys had much room at their last AllowAll. It only guesses whether
// the next one will be granted: the statement decides. A wrong guess costs a round trip and
// a line in the server's log.
type headroom struct {
	seed maphash.Seed
	// keys holds hashes of keys that had room. A key has four places, which it shares with
	// others; the last ones have them.
	keys [1024]places
}

type places [4]atomic.Uint64

func newHeadroom() *headroom { return &headroom{seed: maphash.MakeSeed()} }

// A key had room if no more than half of what fits was in use. A request is small if it
// asks for at most a quarter. So a small request fits unless others have taken another
// quarter since.
const (
	muchInUse = 0.5
	small     = 0.25
)

// note remembers the groups' state after a decision.
func (m *headroom) note(groups []*store.Group) {
	if m == nil {
		return
	}
	for _, g := range groups {
		o := &g.Outcome
		p, hash := m.places(g)
		if (g.Fits() || g.Floor > 0) && !o.IsBlocked() && o.View.Level(&g.Rules, o.UpdatedAt) <= muchInUse*g.Capacity {
			p.add(hash)
		} else {
			p.remove(hash)
		}
	}
}

// likely reports whether all groups are likely to be granted.
func (m *headroom) likely(groups []*store.Group) bool {
	if m == nil {
		return false
	}
	for _, g := range groups {
		if p, hash := m.places(g); g.Contended || g.Cost > small*g.Capacity-(g.Capacity-g.Ceiling()) || !p.have(hash) {
			return false
		}
	}
	return true
}

func (m *headroom) places(g *store.Group) (p *places, hash uint64) {
	hash = maphash.Comparable(m.seed, struct {
		algorithm   algorithm.Name
		policy, key string
	}{g.Algorithm, g.Policy, g.Key})
	return &m.keys[hash%uint64(len(m.keys))], hash
}

func (p *places) have(hash uint64) bool {
	for i := range p {
		if p[i].Load() == hash {
			return true
		}
	}
	return false
}

func (p *places) add(hash uint64) {
	at := hash >> 62
	for i := range p {
		switch p[i].Load() {
		case hash:
			return
		case 0:
			at = uint64(i)
		}
	}
	p[at].Store(hash)
}

func (p *places) remove(hash uint64) {
	for i := range p {
		p[i].CompareAndSwap(hash, 0)
	}
}
