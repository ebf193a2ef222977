package soak

import (
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// population is the keys that have arrived, numbered in the order of their arrival. While
// one generation of them arrives, the traffic goes to the generation before it, and then
// never to that one again.
type population struct {
	generation int // its number of keys, a power of two
	arrived    atomic.Int64
	weights    []uint32 // numbers within a generation, popular ones more often
	drawn      atomic.Int64
	// emptyBy has for each key the clock's time, in microseconds, at which its row must be
	// empty: the latest that any answer gave. 0 for a key without a row.
	emptyBy []atomic.Int64
}

func newPopulation(generation, most int) *population {
	return &population{generation: generation, weights: measure.Zipf(generation), emptyBy: make([]atomic.Int64, most)}
}

// arrive returns the number of a new key, if fewer than due have arrived.
func (p *population) arrive(due int) (n int, ok bool) {
	due = min(due, len(p.emptyBy))
	for {
		n := p.arrived.Load()
		if n >= int64(due) {
			return 0, false
		}
		if p.arrived.CompareAndSwap(n, n+1) {
			return int(n), true
		}
	}
}

// draw returns the number of a key in use, popular ones more often. ok is false before the
// first generation has arrived.
func (p *population) draw() (n int, ok bool) {
	before := int(p.arrived.Load())/p.generation - 1
	if before < 0 {
		return 0, false
	}
	const odd = 10_007 // spreads the popular keys over the generation's policies
	weight := p.weights[p.drawn.Add(1)%int64(len(p.weights))]
	return before*p.generation + int(weight)*odd%p.generation, true
}

// note records that the row of a key may be in use until at.
func (p *population) note(n int, at time.Time) {
	us := at.UnixMicro()
	for {
		known := p.emptyBy[n].Load()
		if us <= known || p.emptyBy[n].CompareAndSwap(known, us) {
			return
		}
	}
}

// keyName returns the key with a number, and keyNumber reverses it. Keys that arrive one
// after the other are far apart in an index, as names and addresses are.
func keyName(n int) string {
	return strconv.FormatUint(uint64(n)*0x9e3779b97f4a7c15>>32, 36) + "-" + strconv.Itoa(n)
}

func keyNumber(key string) int {
	_, number, _ := strings.Cut(key, "-")
	n, _ := strconv.Atoi(number) // the population alone writes keys
	return n
}
