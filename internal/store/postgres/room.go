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
	// keys holds hashes of keys that had room. A key has one place, which it shares with
	// others; the last one has it.
	keys [4096]atomic.Uint64
}

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
		place, hash := m.place(j)
		o := &j.Outcome
		if j.Fits() && !o.IsBlocked() && o.View.Level(&j.Rules, o.UpdatedAt) <= muchInUse*j.Capacity {
			place.Store(hash)
		} else {
			place.CompareAndSwap(hash, 0)
		}
	}
}

// likely reports whether all joints are likely to be granted.
func (m *room) likely(joints []*store.Joint) bool {
	if m == nil {
		return false
	}
	for _, j := range joints {
		if place, hash := m.place(j); j.Hot || j.Cost > small*j.Capacity || place.Load() != hash {
			return false
		}
	}
	return true
}

func (m *room) place(j *store.Joint) (place *atomic.Uint64, hash uint64) {
	hash = maphash.Comparable(m.seed, struct {
		algorithm   algorithm.Name
		policy, key string
	}{j.Algorithm, j.Policy, j.Key})
	return &m.keys[hash%uint64(len(m.keys))], hash
}
