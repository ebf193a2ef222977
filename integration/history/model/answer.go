package model

import (
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// standing returns the part of an answer that says how a key stands.
func (k *Key) standing(r *Rules, now int64) limiter.Result {
	c, at := k.present(r, now)
	return c.answer(r, c.State.Seen(&r.Rules, now, at, r.Capacity, 0), now)
}

// answer is standing by a view of the key. Costs and bursts are whole.
func (k *Key) answer(r *Rules, v algorithm.View, now int64) limiter.Result {
	at := max(k.Clock, now)
	level := v.Level(&r.Rules, at)
	a := limiter.Result{
		Limit: r.Limit, Burst: r.Burst, Level: level, Remaining: max(0, math.Floor(r.Capacity-level)), Full: r.Burst-level <= r.Capacity-r.Burst,
		ResetAfter: after(now, max(v.EmptyAt(&r.Rules, at), k.Blocked)), At: time.UnixMicro(now),
	}
	if k.blocked(now) {
		a.Remaining = 0
	}
	if r.family() == algorithm.Balances {
		a.Level = max(0, level)
	}
	return a
}

// wait returns the time until need units fit into a room.
func (k *Key) wait(r *Rules, now int64, room, need float64) time.Duration {
	c, at := k.present(r, now)
	fits := at
	if need > 0 {
		fits = c.State.Seen(&r.Rules, now, at, room, need).FitsAt(&r.Rules, at, room, need)
	}
	return after(now, max(fits, k.Blocked))
}

// delay returns how long units ahead stay in a queue.
func (r *Rules) delay(ahead float64) time.Duration {
	if !r.queue() {
		return 0
	}
	return time.Duration(math.Round(ahead/r.Leak)) * time.Microsecond
}

func after(now, us int64) time.Duration {
	if us == algorithm.Never {
		return limiter.Never
	}
	return time.Duration(max(0, us-now)) * time.Microsecond
}

func reason(blocked bool) limiter.Reason {
	if blocked {
		return limiter.ReasonBlocked
	}
	return limiter.ReasonLimit
}

// Answer is what a call has returned.
type Answer struct {
	Fault   string // an error that changes nothing
	Result  limiter.Result
	Held    int // a Reserve's reservation; 0 is none
	Expires time.Time
	Fence   int64 // of an Acquire
	Usage   limiter.Usage
	Sum     float64
	All     limiter.Results // of several keys; of an AllowAny and a Split, DeniedBy is GrantedBy
	IDs     []int           // of a ReserveAll, as Held
}

// The faults.
const (
	Invalid = "invalid"
	Unknown = "no reservation"
	Ended   = "reservation ended"
	Unread  = "no estimate was read" // of no answer
)

// Results returns all results of an answer.
func (a *Answer) Results() []limiter.Result {
	return append([]limiter.Result{a.Result, a.Usage.Result}, a.All.PerRequest...)
}

// At returns the reading of the clock that an answer names, or 0.
func (a *Answer) At() int64 {
	for _, r := range a.Results() {
		if !r.At.IsZero() {
			return r.At.UnixMicro()
		}
	}
	return 0
}

// same reports whether the answers to op are equal, but for the Source of each result.
func same(op *Op, want, got *Answer) bool {
	for i := range min(len(want.All.PerRequest), len(got.All.PerRequest)) {
		if !Same(op.Requests[i].Policy, want.All.PerRequest[i], got.All.PerRequest[i]) {
			return false
		}
	}
	u, v := want.Usage, got.Usage
	r := rounding(loose(op.Policy))
	return want.Fault == got.Fault && r.units(want.Sum, got.Sum) && want.Held == got.Held && slices.Equal(want.IDs, got.IDs) && want.Fence == got.Fence && want.Expires.Equal(got.Expires) &&
		len(want.All.PerRequest) == len(got.All.PerRequest) && want.All.Allowed == got.All.Allowed && want.All.DeniedBy == got.All.DeniedBy &&
		r.units(u.Spent, v.Spent) && r.units(u.Reserved, v.Reserved) && u.Granted == v.Granted && u.Expired == v.Expired && u.Debt == v.Debt && slices.EqualFunc(u.Lots, v.Lots, sameLot) &&
		u.Reservations == v.Reservations && u.WindowEndsAt.Equal(v.WindowEndsAt) && Same(op.Policy, u.Result, v.Result) && Same(op.Policy, want.Result, got.Result)
}

// Same reports whether results are equal, but for their Source.
func Same(p limiter.Policy, want, got limiter.Result) bool {
	r := rounding(loose(p))
	if !r.units(want.Granted, got.Granted) || !r.units(want.Remaining, got.Remaining) && !r.edge(want, got) || !r.units(want.Level, got.Level) ||
		!r.time(want.RetryAfter, got.RetryAfter) || !r.time(want.ResetAfter, got.ResetAfter) {
		return false
	}
	want.Granted, want.Remaining, want.Level = got.Granted, got.Remaining, got.Level
	want.RetryAfter, want.ResetAfter, want.Source = got.RetryAfter, got.ResetAfter, got.Source
	if r && math.Abs(want.Level-want.Burst) <= 1e-6 {
		want.Full = got.Full
	}
	return want == got
}

// rounding is forgiven if it is true: a millionth of a unit and a microsecond.
type rounding bool

func (r rounding) units(want, got float64) bool {
	return want == got || bool(r) && math.Abs(want-got) <= 1e-6
}

// edge forgives a unit of Remaining, which is rounded down, if the level is whole but for
// rounding.
func (r rounding) edge(want, got limiter.Result) bool {
	return bool(r) && math.Abs(want.Remaining-got.Remaining) <= 1 && math.Abs(got.Level-math.Round(got.Level)) <= 1e-6
}

func (r rounding) time(want, got time.Duration) bool {
	return want == got || bool(r) && want != limiter.Never && got != limiter.Never && (want-got).Abs() <= time.Microsecond
}

// loose reports whether a policy's numbers are rounded: weights of weights of a counter.
func loose(p limiter.Policy) bool { return p.Algorithm == limiter.SlidingWindowCounter }
