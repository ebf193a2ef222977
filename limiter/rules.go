package limiter

import (
	"math"
	"time"
)

// never is a time in microseconds that does not come.
const never = math.MaxInt64

// rules are a policy's numbers as the statements and the models take them;
// all times are microseconds.
type rules struct {
	algorithm Algorithm
	burst     float64
	capacity  float64 // burst and the slack that forgives rounding
	leak      float64 // units that a bucket leaks per tick
	tick      int64
	period    int64
	aligned   bool
	calendar  *calendar // nil: none; else period is 0
	blockFor  int64
	hold      int64 // after that long without a decision the key holds nothing
}

// maxHold keeps the sums of the statements within int64, the 72 holds by which
// an overrun expiry moves included.
const maxHold = int64(maxDuration / time.Microsecond)

// newRules compiles a valid policy.
func newRules(p *Policy) rules {
	r := rules{
		algorithm: p.Algorithm,
		burst:     p.burst(),
		tick:      1,
		period:    p.Period.Microseconds(),
		aligned:   p.Aligned,
		blockFor:  p.BlockFor.Microseconds(),
	}
	// The slack is too small to ever let one whole unit more pass.
	r.capacity = r.burst + min(1e-6, 1e-9*r.burst)
	if p.Tick > 0 {
		r.tick = p.Tick.Microseconds()
	}
	switch {
	case r.algorithm.bucket():
		r.leak = float64(p.Limit*float64(r.tick)) / float64(r.period)
		r.hold = r.drain(r.capacity)
	case r.algorithm == SlidingWindowCounter:
		r.hold = 2 * r.period
	case p.Calendar != "":
		r.calendar, _ = calendarOf(p.Calendar, p.TimeZone)
		r.hold = p.Calendar.longest()
	default:
		r.hold = r.period
	}
	r.hold = min(max(r.hold, r.blockFor), maxHold)
	return r
}

// drain is how long level units take to leak, at most, rounded up to ticks.
func (r *rules) drain(level float64) int64 {
	ticks := math.Ceil(level/r.leak) + 1
	if ticks >= float64(maxHold/r.tick) {
		return maxHold
	}
	return int64(ticks) * r.tick
}

// free is how many asks of cost units fit into room when used are in use.
func free(room, used, cost float64) float64 {
	return math.Floor((room - used) / cost)
}

// brim is how full a key with level units in it may be counted, whose capacity
// was that of its last decision. What is above the capacity is taken off, as when
// the limit was lowered, but not what was spent beyond it.
func (r *rules) brim(level, capacity float64) float64 {
	if overdrawn(level, capacity) {
		return level
	}
	return r.capacity
}

// overdrawn tells whether more was spent than there was, as only a Settle above
// its hold does. A sum's rounding is not taken for it.
func overdrawn(level, capacity float64) bool { return level > float64(1.00000000000001*capacity) }

// rebaseAbove is where a log's running totals start again from zero: early
// enough that their last digits hold the slack, and whole units stay exact.
func (r *rules) rebaseAbove() float64 {
	return min(16*r.capacity, maxUnits-r.capacity)
}

// view is what a key holds at one moment: all that a Result tells of it. Times
// are microseconds, never where they do not come.
type view interface {
	// level is what is in use at at, the moment of the decision.
	level(r *rules, at int64) float64
	// fitsAt is the first moment, not before at, when need units fit into room
	// if nothing else happens.
	fitsAt(r *rules, at int64, room, need float64) int64
	// emptyAt is the first moment, not before at, when nothing is held.
	emptyAt(r *rules, at int64) int64
	// less is the view before the last units were added.
	less(units float64) view
}

// state is a view that moves: the model of one algorithm that the in-memory
// limiter runs on and that the statements are held to. In each method now is
// the clock as read and at the clock that never moves back.
type state interface {
	// level is what is in use; the state is at at.
	level(r *rules, at int64) float64
	// advance brings the state to at.
	advance(r *rules, now, at int64)
	// put adds units that fit; the state is at at.
	put(at int64, units float64)
	// fill adds up to units, as far as the capacity goes, and returns how
	// many; the state is at at.
	fill(r *rules, at int64, units float64) float64
	// refund takes up to units back and returns how many.
	refund(r *rules, now, at int64, units float64) float64
	// settle changes what is counted of a hold to actual units and returns how
	// many went back; the state is as it was after its last decision, by r. A
	// fresh one has had none.
	settle(r *rules, now, at int64, h *held, actual float64, fresh bool) float64
	clone() state
	// seen is the state as it stands, safe to keep: room and need are those
	// that fitsAt will be asked for.
	seen(room, need float64) view
}

func newState(a Algorithm, now int64) state {
	switch a {
	case FixedWindow:
		return &fixedWindow{}
	case SlidingWindowCounter:
		return &slidingCounter{}
	case SlidingWindowLog:
		return &slidingLog{}
	}
	return &bucket{leakedAt: now, ticket: now}
}
