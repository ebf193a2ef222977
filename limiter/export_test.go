package limiter

import (
	"cmp"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/lease"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// NewForgetting returns a Limiter in memory, a function that makes it forget idle keys, as
// it otherwise does when it has grown, and one that counts its keys.
func NewForgetting(config *Config) (l *Limiter, forget func(), keys func() int) {
	m := memory.NewBounded(cmp.Or(config.MaxKeys, math.MaxInt))
	l = newInMemory(m, config)
	return l, func() { m.Forget(l.now()) }, m.Len
}

// Process is how a limiter of a test takes leases.
type Process struct {
	Clock        lease.Clock                 // nil: as New
	After        func(time.Duration, func()) // nil: as New
	Start        func(func())                // in the background; nil: a goroutine
	Store        func(store.Store) store.Store
	Least, Share int64 // 0: as New
}

// NewLeasing returns a Limiter that takes leases from rows in memory, which it may share with
// others, as limiters over one database do.
func NewLeasing(rows *memory.Store, config *Config, p Process) *Limiter {
	c := config.withDefaults()
	l := newInMemory(rows, &c)
	o := leaseOptions(c.LeaseKeys, c.leaseClock())
	o.Least, o.Share = cmp.Or(p.Least, o.Least), cmp.Or(p.Share, o.Share)
	if p.Clock != nil {
		o.Clock = p.Clock
	}
	if p.After != nil {
		o.After = p.After
	}
	if p.Start == nil {
		p.Start = l.inBackground
	}
	if p.Store != nil {
		s := p.Store(l.store)
		l.store, l.unbounded = s, s
	}
	if err := l.lease(o, p.Start); err != nil {
		panic(err)
	}
	return l
}

// Blocks returns the number of blocks that l holds.
func (l *Limiter) Blocks() int { return l.leases.Len() }
