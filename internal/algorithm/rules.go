package algorithm

import (
	"math"
	"time"
)

// Never is a time in microseconds that does not come.
const Never = math.MaxInt64

// Rules are a policy's numbers as the statements and the models take them;
// all times are microseconds.
type Rules struct {
	Burst    float64
	Capacity float64 // burst and the slack that forgives rounding
	Leak     float64 // units that a bucket leaks per tick
	Tick     int64
	Period   int64
	Aligned  bool
	Calendar *Calendar // nil: none; else period is 0
	BlockFor int64
	Lifetime int64 // when the janitor looks at a new row first: so long it may hold something
}

// MaxUnits is 2^53: above it float64 skips whole numbers.
const MaxUnits = 1 << 53

// MaxLifetime is a hundred years: it keeps the sums of the statements within int64.
const MaxLifetime = int64(36525 * 24 * time.Hour / time.Microsecond)

// Drain is how long level units take to leak, at most, rounded up to ticks.
func (r *Rules) Drain(level float64) int64 {
	ticks := math.Ceil(level/r.Leak) + 1
	if ticks >= float64(MaxLifetime/r.Tick) {
		return MaxLifetime
	}
	return int64(ticks) * r.Tick
}

// Fit is how many asks of cost units fit into room when used are in use.
func Fit(room, used, cost float64) float64 {
	return math.Floor((room - used) / cost)
}

// rebaseAbove is where a log's running totals start again from zero: early
// enough that their last digits hold the slack, and whole units stay exact.
func (r *Rules) rebaseAbove() float64 {
	return min(16*r.Capacity, MaxUnits-r.Capacity)
}

// View is what a key holds at one moment: all that a Result tells of it. Times
// are microseconds, never where they do not come.
type View interface {
	// Level is what is in use at at, the moment of the decision.
	Level(r *Rules, at int64) float64
	// FitsAt is the first moment, not before at, when need units fit into room
	// if nothing else happens.
	FitsAt(r *Rules, at int64, room, need float64) int64
	// EmptyAt is the first moment, not before at, when nothing is held.
	EmptyAt(r *Rules, at int64) int64
	// Less is the view before the last units were added.
	Less(units float64) View
	// Counted names what a decision that was made at at counted in: a time or a
	// window, of which no more than that decision counted can go back.
	Counted(at int64) Grant
}

// Grant is what units were counted in: where from they can be given back.
type Grant struct {
	Made   bool
	At     int64 // of a bucket: since when they leak; of a log: the entry
	EndsAt int64 // of a window: its end
}

// State is what a key holds, and moves: the model of one algorithm that the in-memory
// limiter runs on and that the statements are held to. In each method now is
// the clock as read and at the clock that never moves back.
type State interface {
	// Used is what is in use at at.
	Used(r *Rules, now, at int64) float64
	// Advance brings the state to at, to be added to.
	Advance(r *Rules, now, at int64)
	// Deny is what a denial leaves behind: of buckets and of windows that are
	// over what time has done, else nothing.
	Deny(r *Rules, now, at int64)
	// Put adds units that fit; the state is at at.
	Put(at int64, units float64)
	// Fill adds up to units, as far as the capacity goes, and returns how
	// many.
	Charge(r *Rules, now, at int64, units float64) float64
	// Refund takes up to units back and returns how many. What goes back goes by
	// the rules of the last decision.
	Refund(r *Rules, now, at int64, units float64) float64
	// Undo takes back what is left of units that were counted in g by the rules
	// by, and returns how many.
	Undo(r *Rules, now, at int64, g Grant, by *Rules, units float64) float64
	// Settle changes what is counted of a hold to actual units and returns how
	// many went back; the state is as it was after its last decision, by r. A
	// fresh one has had none.
	Settle(r *Rules, now, at int64, h Reservation, actual float64, fresh bool) float64
	// IdleAt is from when the state holds nothing, by the rules of the last
	// decision.
	IdleAt(r *Rules) int64
	Clone() State
	// Seen is the state as it stands at at, safe to keep: room and need are those
	// that FitsAt will be asked for.
	Seen(r *Rules, now, at int64, room, need float64) View
}

// Held is what a hold counts, as Settle has to know it.
type Reservation struct {
	Rules     Rules // of the admission
	Units     float64
	CountedAt int64 // since when it leaks or ages
	EndsAt    int64 // of the window it was counted in
}

// New returns the state of a key that was never used.
func New(f Family, now int64) State {
	switch f {
	case Windows:
		return &Window{}
	case Counters:
		return &Counter{Period: 1}
	case Logs:
		return &Log{Keep: 1}
	}
	return &Bucket{LeakedAt: now, Ticket: now}
}
