package postgres

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// room remembers which keys had much room at their last AllowAll. It only guesses whether
// the next one will be granted: the statement decides. A wrong guess costs a round trip and
// a line in the server's log.
type room struct {
	seed maphash.Seed
	// keys holds hashes of keys that had room. A key has four places, which it shares with
	// others; the last ones have them.
	keys [1024]places
}

type places [4]atomic.Uint64

func newRoom() *room { return &room{seed: maphash.MakeSeed()} }

// A key had room if no more than half of what fits was in use. A request is small if it
// asks for at most a quarter. So a small request fits unless others have taken another
// quarter since.
const (
	muchInUse = 0.5
	small     = 0.25
)

// note remembers the joints' state after a decision.
func (m *room) note(joints []*store.Joint) {
	if m == nil {
		return
	}
	for _, j := range joints {
		o := &j.Outcome
		p, hash := m.places(j)
		if j.Fits() && !o.IsBlocked() && o.View.Level(&j.Rules, o.UpdatedAt) <= muchInUse*j.Capacity {
			p.add(hash)
		} else {
			p.remove(hash)
		}
	}
}

// likely reports whether all joints are likely to be granted.
func (m *room) likely(joints []*store.Joint) bool {
	if m == nil {
		return false
	}
	for _, j := range joints {
		if p, hash := m.places(j); j.Hot || j.Cost > small*j.Capacity || !p.have(hash) {
			return false
		}
	}
	return true
}

func (m *room) places(j *store.Joint) (p *places, hash uint64) {
	hash = maphash.Comparable(m.seed, struct {
		algorithm   algorithm.Name
		policy, key string
	}{j.Algorithm, j.Policy, j.Key})
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
