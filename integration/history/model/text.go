package model

import "fmt"

// clockShown shortens times in texts: the last digits tell them apart.
func clockShown(us int64) int64 { return us % 1e10 }

// String describes a key.
func (k *Key) String() string {
	if !k.Known {
		return "unknown"
	}
	return fmt.Sprintf("level %v since %d ends %d before %v of %d entries %v, clock %d blocked %d counted %v, last limit %v per %d",
		k.Level, clockShown(k.Since), clockShown(k.Ends), k.Before, k.Span, k.Entries, clockShown(k.Clock), clockShown(k.Blocked), k.Counted, k.Last.Limit, k.Last.Period)
}

// String describes a reservation.
func (h *Reservation) String() string {
	return fmt.Sprintf("reservation %d %s %v of %v of key %d idempotency %d made %d expires %d forgotten %d ends %d",
		h.ID, h.State, h.Units, h.Reserved, h.Key, h.Idem, clockShown(h.Made), clockShown(h.Expires), clockShown(h.Forget), clockShown(h.Grant.Ends))
}

// String describes an answer.
func (a Answer) String() string {
	s := fmt.Sprintf("%v %v level %v remaining %v of %v retry %d reset %d at %d", a.Allowed, a.Granted, a.Level, a.Remaining, a.Burst, a.RetryAfter, a.ResetAfter, clockShown(a.At))
	if a.Delay != 0 {
		s += fmt.Sprintf(" delay %d", a.Delay)
	}
	if a.Reason != "" {
		s += " " + a.Reason
	}
	if a.Full {
		s += " full"
	}
	if a.Replayed {
		s += " replayed"
	}
	if a.Expired {
		s += " expired"
	}
	return s
}
