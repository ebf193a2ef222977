package algorithm

import (
	"math"
	"time"
)

// Never is the time, in microseconds, of an event that does not happen.
const Never = math.MaxInt64

// Rules are a policy's numbers for the statements and the models. All times are
// microseconds.
type Rules struct {
	Burst    float64
	Capacity float64 // burst and the slack that forgives rounding
	Leak     float64 // units that a bucket leaks per tick
	Tick     int64
	Period   int64
	Aligned  bool
	Calendar *Calendar // nil: none; else Period is 0
	BlockFor int64
	Lifetime int64 // how long a new row may be in use; the janitor checks it after that
}

// MaxUnits is 2^53: above it float64 skips whole numbers.
const MaxUnits = 1 << 53

// MaxLifetime is a hundred years. It keeps the sums of the statements within int64.
const MaxLifetime = int64(36525 * 24 * time.Hour / time.Microsecond)

// Drain returns an upper bound for the time in which level units leak, in whole ticks.
func (r *Rules) Drain(level float64) int64 {
	ticks := math.Ceil(level/r.Leak) + 1
	if ticks >= float64(MaxLifetime/r.Tick) {
		return MaxLifetime
	}
	return int64(ticks) * r.Tick
}

// Fit returns how many requests of cost units fit into room when used units are in use.
func Fit(room, used, cost float64) float64 {
	return math.Floor((room - used) / cost)
}

// rebaseAbove returns the total above which a log's running totals start again from zero.
// Below it their last digits keep the slack, and whole units stay exact.
func (r *Rules) rebaseAbove() float64 {
	return min(16*r.Capacity, MaxUnits-r.Capacity)
}

// View is the state of a key at one moment, for a Result. Times are microseconds, or
// Never.
type View interface {
	// Level returns the units in use at time at, the moment of the decision.
	Level(r *Rules, at int64) float64
	// FitsAt returns the first moment, not before at, when need units fit into room if
	// nothing else happens.
	FitsAt(r *Rules, at int64, room, need float64) int64
	// EmptyAt returns the first moment, not before at, when no units are in use.
	EmptyAt(r *Rules, at int64) int64
	// Less returns the view before the last units were added.
	Less(units float64) View
	// Counted returns the Grant of a decision made at time at.
	Counted(at int64) Grant
	// Part returns a state that goes on from the view, with a part of its units.
	Part(r *Rules, part float64) State
}

// Grant is the time or window that units were counted in. They can be given back only
// from there.
type Grant struct {
	Made     bool
	Priority int16 // account: that of the lot
	Lot      int32 // account: the first lot, as Spent has it
	At       int64 // bucket: when they began to leak; log: the entry
	EndsAt   int64 // window: its end; account: that of the lot
}

// State is the changing state of a key: the model of one algorithm, for the in-memory
// limiter and the tests of the statements. In each method now is the clock as read, and
// at is the clock that never moves back.
type State interface {
	// Used returns the units in use at time at.
	Used(r *Rules, now, at int64) float64
	// Advance brings the state to time at, ready for Put.
	Advance(r *Rules, now, at int64)
	// Deny records a denial. It changes only what time has changed, for buckets and for
	// windows that have ended.
	Deny(r *Rules, now, at int64)
	// Put adds units that fit. The state is at time at.
	Put(at int64, units float64)
	// Charge adds up to units, to the capacity at most, and returns how many.
	Charge(r *Rules, now, at int64, units float64) float64
	// Refund takes back up to units, by the rules of the last decision, and returns how
	// many.
	Refund(r *Rules, now, at int64, units float64) float64
	// Undo takes back what is left of units that were counted in g by the rules by, and
	// returns how many.
	Undo(r *Rules, now, at int64, g Grant, by *Rules, units float64) float64
	// Counts reports whether units that were counted in g by the rules by count at time at.
	Counts(r *Rules, at int64, g Grant, by *Rules, units float64) bool
	// Settle changes the units of a reservation to actual and returns how many went back.
	// The state is that of its last decision, by r. A fresh state has had none.
	Settle(r *Rules, now, at int64, h Reservation, actual float64, fresh bool) float64
	// IdleAt returns the time from which no units are in use, by the rules of the last
	// decision.
	IdleAt(r *Rules) int64
	Clone() State
	// Seen returns the state at time at, as a copy. room and need are those of the later
	// FitsAt.
	Seen(r *Rules, now, at int64, room, need float64) View
}

// Reservation is a reservation's units and how they were counted, for Settle.
type Reservation struct {
	Rules     Rules // of the admission
	Units     float64
	CountedAt int64 // when it began to leak or age
	EndsAt    int64 // of its window
	Parts     []Lot // account: what it took of each lot, as Account has it
}

// New returns the state of an unused key.
func New(f Family, now int64) State {
	switch f {
	case Windows:
		return &Window{}
	case Counters:
		return &Counter{Period: 1}
	case Logs:
		return &Log{Keep: 1}
	case Balances:
		return &Account{}
	}
	return &Bucket{LeakedAt: now, Ticket: now}
}
