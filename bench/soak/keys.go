package main

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// zipfS is the exponent of the keys' weights within a generation.
const zipfS = 1.1

// population is the keys that have arrived, numbered in the order of their arrival. While
// one generation of them arrives, the traffic goes to the generation before it, and then
// never to that one again.
type population struct {
	generation int // its number of keys, a power of two
	arrived    atomic.Int64
	// emptyBy has for each key the clock's time, in microseconds, at which its row must be
	// empty: the latest that any answer gave. 0 for a key without a row.
	emptyBy []atomic.Int64
}

func newPopulation(generation, most int) *population {
	return &population{generation: generation, emptyBy: make([]atomic.Int64, most)}
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
func (p *population) draw(z *rand.Zipf) (n int, ok bool) {
	before := int(p.arrived.Load())/p.generation - 1
	if before < 0 {
		return 0, false
	}
	const odd = 10_007 // spreads the popular keys over the generation's policies
	return before*p.generation + int(z.Uint64()*odd)%p.generation, true
}

// weights returns a source of numbers within a generation for draw.
func (p *population) weights(r *rand.Rand) *rand.Zipf {
	return rand.NewZipf(r, zipfS, 1, uint64(p.generation-1))
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

// noteResult records it for an answer.
func (p *population) noteResult(n int, r limiter.Result) { p.note(n, r.At.Add(r.ResetAfter)) }

// keyName returns the key with a number, and keyNumber reverses it. Keys that arrive one
// after the other are far apart in an index, as names and addresses are.
func keyName(n int) string {
	return strconv.FormatUint(uint64(n)*0x9e3779b97f4a7c15>>32, 36) + "-" + strconv.Itoa(n)
}

func keyNumber(key string) (int, bool) {
	_, number, found := strings.Cut(key, "-")
	n, err := strconv.Atoi(number)
	return n, found && err == nil && n >= 0 && keyName(n) == key
}

// policyOf returns a key's policy.
func policyOf(n int) limiter.Policy { return policies[n%len(policies)] }
