package model

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// equalSlots reports whether two rows of slots are the same.
func equalSlots(a, b *algorithm.Slots) bool {
	return slices.Equal(a.IDs, b.IDs) && slices.Equal(a.Costs, b.Costs) && slices.Equal(a.Ends, b.Ends) &&
		a.Fence == b.Fence && a.BlockedUntil == b.BlockedUntil && a.UpdatedAt == b.UpdatedAt && a.Period == b.Period
}

// cloneSlots returns a copy that shares nothing.
func cloneSlots(s algorithm.Slots) algorithm.Slots {
	s.IDs, s.Costs, s.Ends = slices.Clone(s.IDs), slices.Clone(s.Costs), slices.Clone(s.Ends)
	return s
}

// slots does op, which is about slots, at one reading of the clock.
func (w *World) slots(op *Op, now int64) (out Out) {
	s := &w.Keys[op.Key].Slots
	at := max(s.UpdatedAt, now)
	limit, cost := int64(op.Policy.Limit), int64(op.Units)
	switch op.Verb {
	case Acquire:
		taken := false
		if cost <= limit { // or it only reads
			s.Period = op.Policy.Period.Microseconds()
			taken = s.Acquire(at, limit, cost, ticket(-op.Number), at+op.For)
		}
		out.Result = holding(s, limit, cost, now, at, taken)
		if taken {
			out.Held, out.Expires, out.Fence = -op.Number, time.UnixMicro(at+op.For), s.Fence
			out.Result.Allowed, out.Result.Granted, out.Result.Reason, out.Result.RetryAfter = true, op.Units, "", 0
		}
	case Renew:
		end, found := s.Renew(at, ticket(op.Held), at+op.For)
		if out.Expires = time.UnixMicro(end); !found {
			return Out{Answer: Answer{Fault: Unknown}}
		}
	case Release:
		if !s.Release(at, ticket(op.Held)) {
			out.Fault = Unknown
		}
	case Check:
		out.Result = holding(s, limit, cost, now, at, false)
	case Usage:
		r := holding(s, limit, 0, now, at, false)
		seen := cloneSlots(*s)
		seen.End(at)
		out.Usage = limiter.Usage{Result: r, Spent: r.Level, Reservations: len(seen.IDs)}
	case Block:
		s.BlockedUntil = max(s.BlockedUntil, at+op.For)
	case Unblock:
		s.BlockedUntil = 0
	case Reset:
		*s = algorithm.Slots{Fence: s.Fence, UpdatedAt: s.UpdatedAt, Period: s.Period}
	}
	return out
}

// holding answers a request that takes nothing, or has taken its slot.
func holding(row *algorithm.Slots, limit, cost, now, at int64, taken bool) limiter.Result {
	s := cloneSlots(*row)
	s.End(at)
	used, blocked := s.Held(), s.BlockedUntil > at
	a := limiter.Result{
		Limit: float64(limit), Burst: float64(limit), Level: float64(used), Remaining: float64(max(0, limit-used)),
		ResetAfter: after(now, max(s.LastEnd(), s.BlockedUntil)), Full: used >= limit, At: time.UnixMicro(now),
	}
	if blocked {
		a.Remaining = 0
	}
	switch {
	case taken:
	case !blocked && (cost == 0 || used+cost <= limit):
		a.Allowed, a.Granted = true, float64(cost)
	case cost > limit:
		a.Reason, a.RetryAfter = reason(blocked), limiter.Never
	default:
		a.Reason, a.RetryAfter = reason(blocked), after(now, max(s.FreeAt(limit, cost), s.BlockedUntil))
	}
	return a
}

// nameSlot gives a slot the number that its answer has.
func (w *World) nameSlot(op *Op, want, out *Out) bool {
	if out.Held == 0 {
		return want.Held == 0
	}
	ids := w.Keys[op.Key].Slots.IDs
	if i := slices.Index(ids, ticket(want.Held)); i >= 0 {
		ids[i], want.Held = ticket(out.Held), out.Held
		return true
	}
	return false
}
