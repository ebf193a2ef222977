package model

import (
	"cmp"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// parts are the verbs that others do several times, at once or one after the other.
var parts = map[Verb]Verb{AllowAny: Allow, Split: Allow, AllowAll: Allow, ReserveAll: Reserve, SettleAll: Settle, CancelAll: Cancel}

// Sets reports whether a verb has requests of several keys.
func (v Verb) Sets() bool { return parts[v] == Allow || parts[v] == Reserve }

// pools reports whether any of several pools gives what a verb requests.
func (v Verb) pools() bool { return v == AllowAny || v == Split }

// One is the i-th request of a set as an operation, or the end of the i-th reservation.
func (op *Op) One(i int) *Op {
	one, q := *op, op.Requests[i]
	one.Number, one.Verb, one.Requests, one.Pool = op.Number+i, parts[op.Verb], nil, op.Verb.pools()
	one.Key, one.Policy, one.Units, one.Floor, one.Held = q.Key, q.Policy, q.Units, q.Floor, q.Held
	return &one
}

// several does op for its keys.
func (w *World) several(op *Op, now int64, stop int) Out {
	switch op.Verb {
	case SettleAll, CancelAll:
		return w.endAll(op, now)
	case AllowAny, Split:
		return w.pools(op, now, stop)
	case AllowAll, ReserveAll:
		return w.all(op, now, stop)
	}
	return Out{}
}

// before answers a set of which requests were admitted before, under its idempotency key.
func (w *World) before(op *Op, now int64) (out Out, found bool) {
	missing := false
	out.All = limiter.Results{Allowed: true, DeniedBy: -1, PerRequest: make([]limiter.Result, len(op.Requests))}
	for i := range op.Requests {
		one := op.One(i)
		switch h := w.admitted(one); {
		case h == nil:
			missing = true
		case h.Forget <= now || h.overdue(now):
			w.forget(h, now)
			missing = true
		default:
			was := h.replay(one)
			if found = true; was.Fault != "" {
				out.Fault = was.Fault
			}
			if out.add(i, &was); op.Verb.pools() && out.All.DeniedBy < 0 {
				out.All.DeniedBy = i
			}
		}
	}
	switch {
	case !found:
		return Out{}, false
	case out.Fault != "", missing && !op.Verb.pools():
		return Out{Answer: Answer{Fault: Invalid}}, true
	}
	return out, true
}

// add adds the answer to the i-th request of a set that was granted.
func (o *Out) add(i int, was *Out) {
	if o.All.PerRequest[i] = was.Result; was.Held != 0 {
		o.IDs = append(o.IDs, was.Held)
		if o.Expires.IsZero() || was.Expires.Before(o.Expires) {
			o.Expires = was.Expires
		}
	}
}

// admitAll remembers the admissions of a set.
func (w *World) admitAll(op *Op, out *Out, now int64) {
	for i, a := range out.All.PerRequest {
		if op.Verb != ReserveAll && op.Idem == 0 || a.Granted == 0 {
			continue
		}
		h := w.admission(op.One(i), a, now)
		if w.Held = append(w.Held, h); op.Verb == ReserveAll {
			out.add(i, &Out{Answer: Answer{Result: a, Held: h.ID, Expires: time.UnixMicro(h.Expires)}})
		}
	}
}

// pools does an AllowAny under an idempotency key, or a Split, with all rows locked. One that is
// tried is granted by the first pool alone, and gave plus n by the n-th alone.
func (w *World) pools(op *Op, now int64, stop int) (out Out) {
	if out, found := w.before(op, now); found || stop == forgot {
		return out
	}
	n := len(op.Requests)
	each, given, blocked := make([]limiter.Result, n), make([]float64, n), make([]bool, n)
	cost := op.Requests[0].Units
	rest, piece := cost, cost
	if op.Verb == Split {
		piece = 1
	}
	for i := range op.Requests {
		if stop == tried && i > 0 || stop >= gave && i != stop-gave {
			continue
		}
		one := op.One(i)
		k, r := &w.Keys[one.Key], one.rules()
		if blocked[i] = k.blocked(now); stop == whole {
			k.deny(r, now)
		}
		if used := k.used(r, now); !blocked[i] && rest > 0 {
			given[i] = min(rest, piece*max(0, algorithm.Fit(r.Ceiling, used, piece)))
		}
		rest -= given[i]
	}
	if stop != whole && rest > 0 {
		return Out{Answer: Answer{Fault: Unread}}
	}
	out.All = limiter.Results{Allowed: rest == 0, DeniedBy: -1, PerRequest: each}
	left := cost
	for i := range op.Requests {
		one := op.One(i)
		k, r := &w.Keys[one.Key], one.rules()
		switch {
		case left == 0 || stop >= gave && i != stop-gave:
		case rest == 0 && given[i] > 0:
			k.put(r, given[i], now)
			each[i] = k.standing(r, now)
			each[i].Allowed, each[i].Granted = true, given[i]
			if left -= given[i]; out.All.DeniedBy < 0 {
				out.All.DeniedBy = i
			}
		default:
			each[i] = k.standing(r, now)
			each[i].Reason, each[i].RetryAfter = reason(blocked[i]), k.wait(r, now, r.Ceiling, cmp.Or(given[i]+rest, left))
		}
	}
	w.admitAll(op, &out, now)
	return out
}

// endAll does a SettleAll or a CancelAll.
func (w *World) endAll(op *Op, now int64) (out Out) {
	before := w.clone()
	for i := range op.Requests {
		one := w.end(op.One(i), now)
		if one.Fault != "" {
			*w = before
			return one
		}
		if op.Verb == CancelAll {
			continue
		}
		if out.All.PerRequest = append(out.All.PerRequest, one.Result); one.unmoved {
			out.still = append(out.still, i)
		}
	}
	return out
}

// bindAll gives the reservations of a ReserveAll the names that its first answer has.
func (w *World) bindAll(op *Op, want, out *Out) bool {
	if len(want.IDs) != len(out.IDs) {
		return false
	}
	for i := range want.IDs {
		a, b := Out{Answer: Answer{Held: want.IDs[i]}}, Out{Answer: Answer{Held: out.IDs[i]}}
		if !w.bind(&Op{Verb: Reserve}, &a, &b) {
			return false
		}
		want.IDs[i] = a.Held
	}
	return slices.Equal(want.IDs, out.IDs)
}
