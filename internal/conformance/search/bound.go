package search

import (
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Bound is the most that a policy may admit for one key. The zero value has admitted
// nothing.
type Bound struct{ ledger }

// Admit records units that p, always the same policy, admitted at a time in microseconds,
// not before that of the last call. It returns an error if they exceed the bound.
func (b *Bound) Admit(at int64, p *limiter.Policy, units float64) error {
	b.algorithm = p.Algorithm
	b.add(len(b.entries), at, p, units)
	if err := b.check(); err != nil {
		return fmt.Errorf("at %d µs: %w", at, err)
	}
	return nil
}

// Used are the units that were admitted, charged or settled beyond their reservation, less
// those given back. With several policies of one name, burst is the largest, rate the
// fastest of those requested, and period the shortest of those that counted units. After
// each admission:
//
//   - Bucket (leaky_bucket, token_bucket, gcra, leaky_bucket_queue): in every span of time
//     that ends now, used is at most burst + rate × span. With Tick add one tick's units.
//     With leases of several plans, burst is the largest of burst - rate × life, and the
//     span is longer by the longest life.
//   - leaky_bucket_queue: between the turns of two requests there is the time in which the
//     units of the first, and of all between, leave at the rate.
//   - fixed_window: in the current window, used is at most burst.
//   - sliding_window_counter: used is at most burst, if units weigh 1 until the end of the
//     aligned window they came in, and then, over one period, less and less to 0.
//   - sliding_window_log: in the period that ends now, without its begin, used is at most
//     burst.
//
// Rounding may exceed it by 1e-6 units or a billionth of the burst, whichever is less.
// check returns an error if the newest entry exceeds this.
func (l *ledger) check() error {
	newest := &l.entries[len(l.entries)-1]
	switch l.algorithm {
	case limiter.FixedWindow:
		used := 0.0
		for i := range l.entries {
			if e := &l.entries[i]; e.endsAt == newest.endsAt {
				used += e.kept
			}
		}
		return l.exceeded(used, l.burst, "in this window")
	case limiter.SlidingWindowCounter:
		used := 0.0
		for i := range l.entries {
			used += l.entries[i].kept * l.weight(&l.entries[i])
		}
		return l.exceeded(used, l.burst, "weighed")
	case limiter.SlidingWindowLog:
		used, period := 0.0, slices.Min(l.periods)
		for i := range l.entries {
			if e := &l.entries[i]; e.earliest > newest.latest-period {
				used += e.kept
			}
		}
		return l.exceeded(used, l.burst, "in the last period")
	}
	used := 0.0
	for i := len(l.entries) - 1; i >= 0; i-- {
		e := &l.entries[i]
		used += e.kept
		span := newest.latest - e.earliest
		if err := l.exceeded(used, l.burst+l.rate*(float64(span)+l.lent)+l.stepped, fmt.Sprintf("in the last %d µs", span)); err != nil {
			return err
		}
	}
	if l.algorithm == limiter.LeakyBucketQueue && l.rate == l.slowest {
		return l.checkPace()
	}
	return nil
}

// weight is the part of a counter's units that still counts at the latest time that the key's
// clock may have.
func (l *ledger) weight(e *entry) float64 {
	period := float64(slices.Min(l.periods))
	return max(0, min(1, (float64(e.endsAt-l.latest)+period)/period))
}

func (l *ledger) exceeded(used, most float64, where string) error {
	slack := min(1e-6, 1e-9*l.burst)
	if used-l.credit <= most+slack+1e-12*(used+most) {
		return nil
	}
	return fmt.Errorf("%v units are used %s, want at most %v", used, where, most)
}

// checkPace checks the turn of the newest entry against those before.
func (l *ledger) checkPace() error {
	newest := &l.entries[len(l.entries)-1]
	latest := newest.latest + newest.turn.Microseconds()
	used := 0.0
	for i := len(l.entries) - 2; i >= 0; i-- {
		e := &l.entries[i]
		if !e.admitted {
			continue
		}
		used += e.kept
		since := latest - e.earliest - e.turn.Microseconds()
		if most := l.rate * float64(since+2); used > most+1e-6 {
			return fmt.Errorf("%v units have turns in the %v before this turn, want at most %v", used, time.Duration(since)*time.Microsecond, most)
		}
	}
	return nil
}
