//go:build unix

package history

import (
	"slices"
	"sync"
	"time"
)

// summary counts what was done and checked.
type summary map[string]int

// worlds is the number of grounds that are used at once.
const worlds = 3

// ground is what the clients of all processes share: the order of events, and the clock.
type ground struct {
	mu       sync.Mutex
	events   int64   // so far: each call and each return has a number
	readings []int64 // of the clock
	counts   summary // of faults
}

// count counts a fault.
func (g *ground) count(fault string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[fault]++
}

// begin forgets all that was, and sets the clock.
func (g *ground) begin(now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events, g.readings = 0, []int64{now}
}

// tick is the number of the next event.
func (g *ground) tick() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events++
	return g.events
}

// move sets the clock to what next makes of its reading.
func (g *ground) move(next func(now int64) int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.readings = append(g.readings, next(g.readings[len(g.readings)-1]))
}

// now is the reading of the clock, and the number of readings until then.
func (g *ground) now() (us int64, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n = len(g.readings)
	return g.readings[n-1], n
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

// since returns the readings that the clock had since there were n.
func (c clock) since(n int) (all []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, us := range c.readings[n-1:] {
		if us += c.skew; !slices.Contains(all, us) {
			all = append(all, us)
		}
	}
	return all
}

// board has the IDs of a scene's reservations and tickets, with their keys. Their numbers
// begin at 1.
type board struct {
	mu   sync.Mutex
	ids  []string
	keys []int
}

// post puts a reservation on the board, unless it is there, and returns its number.
func (b *board) post(key int, id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.ids, id); i >= 0 {
		return i + 1
	}
	b.ids, b.keys = append(b.ids, id), append(b.keys, key)
	return len(b.ids)
}

// key returns the key of a number.
func (b *board) key(number int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keys[number-1]
}

// posted returns the reservations so far.
func (b *board) posted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ids
}
