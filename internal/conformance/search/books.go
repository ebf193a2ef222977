// Package search makes random histories of calls, sends them to a subject, and judges each
// answer: by a bound for each algorithm, and by what a limiter in memory answers. The bounds
// are written by hand from docs/algorithms.md and share no code with the algorithms. A
// failure shows the shortest history that fails.
package search

import (
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// books are what the calls of one history have used, by policy name and key.
type books struct {
	keys         []ledger
	reservations []reservation
}

// ledger is what one key has used since its last Reset. Its clock is known as an interval:
// all decisions move it to the clock as read, unless it is ahead, but some only read.
type ledger struct {
	algorithm    limiter.Algorithm
	entries      []entry
	earliest     int64   // the key's clock, in microseconds
	latest       int64   //
	endsAt       int64   // of the current fixed window
	burst        float64 // the largest of all policies used
	rate         float64 // the fastest, in units a microsecond
	slowest      float64
	fastest      float64 // of all policies of the history
	lent         float64 // the longest life of a lease of a bucket, in microseconds
	leased       bool
	stepped      float64 // the most units that one tick leaks
	periods      []int64 // of the policies that counted units
	blockedUntil int64
	touched      bool    // by a call that may write
	mayExpire    bool    // the next denial or sweep may give an expired reservation back, and move the clock
	credit       float64 // units that went back, or may: it is not known from where
	remembered   []admission
}

// entry is units that were admitted, charged or settled beyond their reservation.
type entry struct {
	number           int     // in the history; unique
	units            float64 // as counted
	kept             float64 // not given back
	earliest, latest int64   // when, by the key's clock
	endsAt           int64   // of its window
	rate             float64 // of its policy, in units a microsecond
	tick             int64
	turn             time.Duration // from its time on, if it was admitted to a queue
	admitted         bool
}

// admission is one under an idempotency key.
type admission struct {
	key         string
	until       int64 // it is remembered at least until then
	reservation int   // its index, or -1
}

// reservation is one by its step.
type reservation struct {
	step     int
	ledger   int
	entry    int
	policy   limiter.Policy
	units    float64
	earliest int64
	endsAt   int64
	expires  int64 // at the earliest
	state    state
	back     float64 // units that went back
	own      bool    // to its own entry
	freed    bool    // its idempotency key may be used again
	reset    bool    // its entry was forgotten
}

type state string

const (
	open      state = "open"
	settled   state = "settled"
	cancelled state = "cancelled"
	expired   state = "expired" // perhaps given back
)

func (b *books) clone() *books {
	c := &books{keys: slices.Clone(b.keys), reservations: slices.Clone(b.reservations)}
	for i := range c.keys {
		l := &c.keys[i]
		l.entries, l.periods, l.remembered = slices.Clone(l.entries), slices.Clone(l.periods), slices.Clone(l.remembered)
	}
	return c
}

// seen notes that a call may have moved the key's clock to now, and used p.
func (l *ledger) seen(now int64, p *limiter.Policy) {
	l.latest, l.touched = max(l.latest, now), true
	if p == nil {
		return
	}
	life := lifeOf(p)
	l.leased = l.leased || p.Lease > 0
	l.burst, l.lent = max(l.burst, roomOf(p)), max(l.lent, life)
	if p.Period == 0 {
		return
	}
	rate := rateOf(p)
	l.rate, l.stepped = max(l.rate, rate), max(l.stepped, rate*float64(p.Tick.Microseconds()))
	if l.slowest == 0 || rate < l.slowest {
		l.slowest = rate
	}
}

// add records units that were counted under p.
func (l *ledger) add(number int, now int64, p *limiter.Policy, units float64) *entry {
	l.seen(now, p)
	l.earliest = max(l.earliest, now)
	if period := p.Period.Microseconds(); !slices.Contains(l.periods, period) {
		l.periods = append(l.periods, period)
	}
	e := entry{number: number, units: units, kept: units, earliest: l.earliest, latest: l.latest, rate: math.Inf(1), tick: 1}
	switch l.algorithm {
	case limiter.FixedWindow:
		if now >= l.endsAt {
			l.endsAt = windowEnd(p, now)
		}
		e.endsAt = l.endsAt
	case limiter.SlidingWindowCounter: // aligned to a period that was used: the shortest ends first
		e.endsAt = math.MaxInt64
		for _, period := range l.periods {
			e.endsAt = min(e.endsAt, (e.earliest/period+1)*period)
		}
	case limiter.SlidingWindowLog:
	default:
		e.rate, e.tick = rateOf(p), max(1, p.Tick.Microseconds())
	}
	l.entries = append(l.entries, e)
	return &l.entries[len(l.entries)-1]
}

// refund takes units from the newest entries: of a log by definition; of a window in any
// order, since its newest are in the current window; of a bucket because no span of time
// may then hold more than before.
//
// A counter whose period changes goes on with what the units of earlier windows weighed
// then.
//
// While a reservation that has expired may still be counted, they may be its units, and
// then the units of others go back when it is given back. So may units be that a lease has
// not granted yet.
func (l *ledger) refund(units float64) {
	if l.mayExpire || l.leased {
		l.credit += units
		return
	}
	for i := len(l.entries) - 1; i >= 0 && units > 0; i-- {
		e, weight := &l.entries[i], 1.0
		if l.algorithm == limiter.SlidingWindowCounter && len(l.periods) > 1 {
			weight = l.weight(e)
		}
		if back := min(units, e.kept*weight); back > 0 {
			e.kept -= back / weight
			units -= back
		}
	}
}

// giveBack takes units from their own entry, so that only what was not used may be used
// again. It is a refund if they are not counted there any longer, as when units are given
// back twice or after a Reset. It reports whether it was their entry's.
func (l *ledger) giveBack(number int, units float64) (own bool) {
	i := slices.IndexFunc(l.entries, func(e entry) bool { return e.number == number })
	if i < 0 || l.entries[i].kept < l.entries[i].units || units > l.entries[i].kept || l.outpaced(&l.entries[i]) {
		l.refund(units)
		return false
	}
	l.entries[i].kept -= units
	return true
}

// outpaced reports whether a faster policy than the entry's may be used. Undo and Settle
// know the rate of the entry's and of the last decision, not those in between.
func (l *ledger) outpaced(e *entry) bool { return e.rate < l.fastest }

// reset forgets all but the admissions under idempotency keys.
func (l *ledger) reset() {
	*l = ledger{algorithm: l.algorithm, fastest: l.fastest, remembered: l.remembered}
}

func burstOf(p *limiter.Policy) float64 {
	if p.Burst != 0 {
		return p.Burst
	}
	return p.Limit
}

// lifeOf returns the longest time, in microseconds, for which a process may hold units of a
// bucket: in it Lease of the burst passes, in whole ticks, or 10 s if that is less; 0 if it is less
// than 10 ms.
func lifeOf(p *limiter.Policy) float64 {
	if p.Lease == 0 || !bucket(p) {
		return 0
	}
	tick, life := float64(max(1, p.Tick.Microseconds())), min(1e7, p.Lease*burstOf(p)/rateOf(p))
	if life < 1e4 {
		return 0
	}
	return tick * math.Floor(life/tick)
}

// roomOf returns what a key can hold: of a bucket with leases not what passes in their life.
func roomOf(p *limiter.Policy) float64 { return burstOf(p) - lifeOf(p)*leakOf(p) }

// leakOf is rateOf, and 0 for a window.
func leakOf(p *limiter.Policy) float64 {
	if !bucket(p) {
		return 0
	}
	return rateOf(p)
}

// rateOf returns units a microsecond.
func rateOf(p *limiter.Policy) float64 { return p.Limit / float64(p.Period.Microseconds()) }

// windowEnd returns the end of the fixed window that begins with a request at time now.
func windowEnd(p *limiter.Policy, now int64) int64 {
	if p.Calendar == "" && !p.Aligned {
		return now + p.Period.Microseconds()
	}
	_, end := bound.Window(verbs.Plan(p), time.UnixMicro(now))
	return end.UnixMicro()
}
