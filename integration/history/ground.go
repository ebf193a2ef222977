//go:build unix

package history

import (
	"runtime"
	"sync/atomic"
	"time"
)

// ground is what the clients of a history share, in memory that all processes have mapped:
// the order of events, the clock, and the reservations that any client may end. So it has
// no pointers.
type ground struct {
	events   atomic.Int64 // so far: each call and each return has a number
	lock     atomic.Int32
	count    atomic.Int64 // of readings
	readings [1 << 17]int64
	boards   [maxScenes]board
}

const maxScenes = 16 // that run at once

// board has the IDs of a scene's reservations. Their numbers begin at 1.
type board struct {
	count atomic.Int64
	ids   [256]struct {
		length int64
		text   [120]byte
	}
}

func (g *ground) hold() {
	for !g.lock.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
}

func (g *ground) let() { g.lock.Store(0) }

// clear forgets all that was: a new round begins.
func (g *ground) clear() {
	g.events.Store(0)
	g.count.Store(0)
	for i := range g.boards {
		g.boards[i].count.Store(0)
	}
}

// tick is the number of the next event.
func (g *ground) tick() int64 { return g.events.Add(1) }

// move sets the clock to what next makes of its reading.
func (g *ground) move(next func(now int64) int64) {
	g.hold()
	defer g.let()
	n := g.count.Load()
	now := int64(0)
	if n > 0 {
		now = g.readings[n-1]
	}
	g.readings[n] = next(now)
	g.count.Store(n + 1)
}

// now is the reading of the clock, and the number of readings until then.
func (g *ground) now() (us, n int64) {
	n = g.count.Load()
	return g.readings[n-1], n
}

// since returns the readings that the clock had since there were n.
func (g *ground) since(n int64, skew int64) (all []int64) {
	seen := map[int64]bool{}
	for _, us := range g.readings[n-1 : g.count.Load()] {
		if us += skew; !seen[us] {
			seen[us] = true
			all = append(all, us)
		}
	}
	return all
}

// post puts a reservation on a board, unless it is there, and returns its number.
func (g *ground) post(b *board, id string) int {
	g.hold()
	defer g.let()
	n := b.count.Load()
	for i := range n {
		if b.id(int(i)+1) == id {
			return int(i) + 1
		}
	}
	b.ids[n].length = int64(copy(b.ids[n].text[:], id))
	b.count.Store(n + 1)
	return int(n) + 1
}

// id returns the ID of a reservation that was posted.
func (b *board) id(number int) string {
	e := &b.ids[number-1]
	return string(e.text[:e.length])
}

// clock is the ground's clock as one process reads it.
type clock struct {
	*ground
	skew int64
}

func (c clock) read() time.Time {
	us, _ := c.now()
	return time.UnixMicro(us + c.skew)
}
