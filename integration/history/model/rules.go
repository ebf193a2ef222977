// Package model says what each verb of the limiter does to a key and what it answers. It is
// written from docs/algorithms.md and the docs of package limiter, and shares no code with
// the stores, so that the two can be compared.
//
// Times are microseconds. Units are float64: with limits that are whole numbers and periods
// that are powers of two every sum and product here is exact, whatever its order.
package model

import "math"

// Never is the time of an event that does not happen.
const Never = math.MaxInt64

// Kind is how a policy decides.
type Kind int

// The kinds. LeakyBucket, TokenBucket and GCRA decide alike.
const (
	Bucket Kind = iota
	Queue
	Window
	Counter
	Log
)

// Rules are a policy's numbers.
type Rules struct {
	Kind         Kind
	Name         string
	Limit, Burst float64
	Period       int64
	Tick         int64 // at least 1
	Aligned      bool
	Hourly       bool // windows are the hours of UTC
	BlockFor     int64
}

// capacity is the burst and the slack that forgives rounding.
func (r *Rules) capacity() float64 { return r.Burst + min(1e-6, 1e-9*r.Burst) }

// leak returns the units that leak in a number of microseconds, in whole ticks.
func (r *Rules) leak(us int64) float64 {
	return float64(us/r.Tick) * r.Limit * float64(r.Tick) / float64(r.Period)
}

// leaked returns the time in which units leak, in whole ticks.
func (r *Rules) leaked(units float64) int64 {
	perTick := r.leak(r.Tick)
	return int64(math.Ceil(units/perTick)) * r.Tick
}

// windowEnd returns the end of a window that starts at now.
func (r *Rules) windowEnd(now int64) int64 {
	const hour = 3600 * 1e6
	switch {
	case r.Hourly:
		return now - now%hour + hour
	case r.Aligned:
		return now - now%r.Period + r.Period
	}
	return now + r.Period
}
