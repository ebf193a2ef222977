package model

import (
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// add does a Grant. One whose lot has ended by its process's clock is refused before the key is
// locked, so that nothing of it changes.
func (w *World) add(op *Op, r *Rules, now int64, stop int) (out Out) {
	if h := w.admitted(op); h != nil {
		if h.Forget > now && !h.overdue(now) {
			return h.replay(op)
		}
		if w.forget(h, now); stop == forgot {
			return out
		}
	}
	lot := algorithm.Lot{Left: op.Units, Ends: op.For, Priority: int64(op.Order)}
	if lot.Ends == 0 {
		lot.Ends = algorithm.Never
	}
	if out.Fault = Invalid; stop == hurried && lot.Ends <= now {
		return out
	}
	k := &w.Keys[op.Key]
	k.Clock = k.begin(r, now)
	k.Rules = r.Rules
	if k.State.(*algorithm.Account).Grant(k.Clock, lot) != algorithm.Accepted {
		return out
	}
	out.Fault, out.Result = "", k.changed(r, op.Units, now)
	if op.Idem != 0 {
		h := w.admission(op, out.Result, now)
		h.State = given
		w.Held = append(w.Held, h)
	}
	return out
}

// stand sets what a Usage says of a balance.
func stand(u *limiter.Usage, a *algorithm.Account) {
	u.Reserved = min(u.Reserved, a.Spent)
	u.Spent, u.Granted, u.Expired, u.Debt = a.Spent-u.Reserved, a.Granted, a.Expired, a.Debt
	for _, l := range a.Lots {
		lot := limiter.Lot{Number: l.Number, Units: l.Left, Priority: int(l.Priority), Source: l.Source}
		if l.Ends != algorithm.Never {
			lot.Expires = time.UnixMicro(l.Ends)
		}
		u.Lots = append(u.Lots, lot)
	}
}

func sameLot(a, b limiter.Lot) bool {
	same := a.Expires.Equal(b.Expires)
	a.Expires = b.Expires
	return same && a == b
}
