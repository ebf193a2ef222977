package conformance

import (
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Bound is the most that policies with one name, algorithm and key may admit together:
// what one policy with their largest burst, fastest rate and shortest period would admit.
// It is written from the definitions of the algorithms and shares no code with them.
type Bound struct {
	algorithm limiter.Algorithm
	burst     float64       // the largest
	rate      float64       // units a microsecond, the fastest
	period    time.Duration // the shortest
	tick      time.Duration // the longest

	last   int64 // when the last units passed, in microseconds
	level  float64
	endsAt int64 // of the current window
	passed []passed
}

type passed struct {
	at, endsAt int64
	units      float64
}

// NewBound returns the bound of policies, which have one algorithm.
func NewBound(policies ...limiter.Policy) *Bound {
	b := &Bound{algorithm: policies[0].Algorithm, period: policies[0].Period}
	for _, p := range policies {
		burst := p.Burst
		if burst == 0 {
			burst = p.Limit
		}
		b.burst = max(b.burst, burst)
		b.rate = max(b.rate, p.Limit/float64(p.Period.Microseconds()))
		b.period = min(b.period, p.Period)
		b.tick = max(b.tick, p.Tick)
	}
	// A tick leaks all its units at its end, so that many more may pass at once.
	b.burst += b.rate * float64(b.tick.Microseconds())
	return b
}

// Admit records units that p admitted at a time in microseconds, not before that of the
// last call. It returns an error if they exceed the bound.
func (b *Bound) Admit(at int64, p limiter.Policy, units float64) error {
	if units == 0 {
		return nil
	}
	b.Begin(at, p)
	b.passed = append(b.passed, passed{at, b.endsAt, units})
	used := b.used(at, units)
	b.last = at
	if most := b.burst + min(1e-6, 1e-9*b.burst); used > most*(1+1e-12) {
		return fmt.Errorf("at %d µs: with %v more units %v are in use, want at most %v", at, units, used, b.burst)
	}
	return nil
}

// Begin records that p counted units without admitting them. They begin a window if there
// is none.
func (b *Bound) Begin(at int64, p limiter.Policy) {
	if at < b.endsAt {
		return
	}
	period := p.Period.Microseconds()
	b.endsAt = at + period
	if p.Aligned || b.algorithm == limiter.SlidingWindowCounter {
		b.endsAt = (at/period + 1) * period
	}
}

// used returns the units in use right after units passed at time at.
func (b *Bound) used(at int64, units float64) (used float64) {
	shortest := b.period.Microseconds()
	switch b.algorithm {
	case limiter.FixedWindow: // all of the window
		for _, p := range b.passed {
			if p.endsAt == b.endsAt {
				used += p.units
			}
		}
	case limiter.SlidingWindowCounter: // all of a window until its end, then less and less
		for _, p := range b.passed {
			weighs := float64(p.endsAt+shortest-at) / float64(shortest)
			used += p.units * max(0, min(1, weighs))
		}
	case limiter.SlidingWindowLog: // all of the last period
		for _, p := range b.passed {
			if p.at > at-shortest {
				used += p.units
			}
		}
	default: // a bucket of that burst that leaks at that rate
		b.level = max(0, b.level-float64(at-b.last)*b.rate) + units
		used = b.level
	}
	return used
}
