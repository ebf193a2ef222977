package search

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// account keeps the books of a history and judges each answer by the bound.
type account struct {
	history  *History
	books    *books
	levels   []*books // as they were before the open transactions and savepoints
	receipts map[int][]receipt
	override []*policies.Override // by ledger
	now      int64
	admitted int
	gaveBack int
}

// receipt is an earlier answer, for Undo.
type receipt struct {
	ledger int
	number int // of its entry
	made   bool
	units  float64
}

// perStep is more than the answers of any step, so that entries have unique numbers.
const perStep = 16

func newAccount(h *History) *account {
	r := &account{history: h, books: new(books), receipts: map[int][]receipt{}}
	for i := range h.Policies {
		for r.ledger(i, h.Keys-1) >= len(r.books.keys) {
			l := ledger{algorithm: h.Policies[i].Algorithm}
			for j := range h.Policies { // with an override, the limit of one and the period of another
				for k := range h.Policies {
					if h.Policies[j].Name == h.Policies[i].Name && h.Policies[k].Name == h.Policies[i].Name {
						l.fastest = max(l.fastest, h.Policies[j].Limit/float64(max(1, h.Policies[k].Period.Microseconds())))
					}
				}
			}
			r.books.keys = append(r.books.keys, l)
		}
	}
	r.override = make([]*policies.Override, len(r.books.keys))
	return r
}

// ledger returns the index of the ledger of a policy's name and a key.
func (r *account) ledger(policy, key int) int {
	name := r.history.Policies[policy].Name
	of, last := 0, r.history.Policies[0].Name
	for i := range r.history.Policies[:policy+1] { // plans of a name follow each other
		if n := r.history.Policies[i].Name; n != last {
			of, last = of+1, n
		}
	}
	if last != name {
		panic(name)
	}
	return of*r.history.Keys + key
}

// of returns the ledger of a request and its policy with the override of the key applied.
func (r *account) of(a *Ask) (of int, l *ledger, effective *limiter.Policy) {
	of = r.ledger(a.Policy, a.Key)
	p := r.history.Policies[a.Policy]
	if o := r.override[of]; o != nil {
		p.Limit, p.Burst = *o.Limit, 0
		if o.Burst != nil {
			p.Burst = *o.Burst
		}
	}
	return of, &r.books.keys[of], &p
}

// vague reports whether it is not known what a Settle would still add: it is not called.
func (r *account) vague(s *Step) bool {
	return s.Op == "settle" && slices.ContainsFunc(r.books.reservations, func(h reservation) bool {
		return h.step == s.Of && h.reset && h.state == expired
	})
}

// before notes the time of the next call.
func (r *account) before(now int64) {
	r.now = now
	r.expire()
}

// judge records what a step did. It returns an error if that exceeds the bound.
func (r *account) judge(s *Step, a verbs.Answer) error {
	of, l, p := r.of(&s.Ask)
	switch s.Op {
	case "begin":
		r.levels = append(r.levels, r.books.clone())
		return a.Err
	case "commit", "rollback": // what was rolled back has used nothing
		n := len(r.levels) - 1
		if s.Op == "rollback" {
			r.books = r.levels[n]
		}
		r.levels = r.levels[:n]
		return a.Err
	case "sweep":
		return a.Err
	case "override":
		r.override[of] = s.Override
		return a.Err
	case "all", "any", "split", "batch":
		return r.several(s, a)
	case "settle", "cancel":
		return r.settle(s, a)
	case "usage":
		return expected(a.Err)
	case "check":
		if l.mayExpire {
			l.seen(r.now, nil)
		}
	case "unblock":
		l.blockedUntil = 0
	}
	if a.Err != nil {
		switch s.Op {
		case "allow", "upto", "once", "reserve", "reserve_up_to":
			l.seen(r.now, p)
		}
		return expected(a.Err)
	}
	switch s.Op {
	case "check":
		r.receipt(s, 0, receipt{ledger: of})
	case "allow", "upto", "once":
		if !l.touched && !a.Allowed && s.Floor == 0 && s.Units <= roomOf(p) && r.history.MaxKeys == 0 {
			return fmt.Errorf("an unused key denied %v units: %+v", s.Units, a)
		}
		if s.Op == "once" {
			if err := r.once(l, s, a.PerRequest[0], -1); err != nil || a.PerRequest[0].Replayed {
				r.receipt(s, 0, receipt{ledger: of})
				return err
			}
		}
		return r.decided(s, 0, &s.Ask, a.PerRequest[0])
	case "charge":
		r.receipt(s, 0, receipt{ledger: of})
		l.seen(r.now, p)
		if granted := a.PerRequest[0].Granted; granted > 0 {
			l.add(perStep*s.Number, r.now, p, granted)
		}
	case "refund":
		back := a.PerRequest[0].Granted
		if back > s.Units {
			return fmt.Errorf("%v units went back", back)
		}
		r.receipt(s, 0, receipt{ledger: of})
		l.seen(r.now, p)
		l.refund(back)
	case "undo":
		return r.undo(s, a.PerRequest[0])
	case "reserve", "reserve_up_to":
		return r.reserve(s, a)
	case "block":
		l.blockedUntil = max(l.blockedUntil, max(l.earliest, r.now)+s.For.Microseconds())
		l.seen(r.now, nil)
	case "reset":
		l.reset()
		for i := range r.books.reservations {
			if h := &r.books.reservations[i]; h.ledger == of {
				h.reset = true
			}
		}
	}
	return nil
}

// receipt keeps the i-th answer of a step.
func (r *account) receipt(s *Step, i int, a receipt) {
	all := r.receipts[s.Number]
	for len(all) <= i {
		all = append(all, receipt{})
	}
	all[i] = a
	r.receipts[s.Number] = all
}

// decided records the answer to a request, the i-th of its step.
func (r *account) decided(s *Step, i int, ask *Ask, a limiter.Result) error {
	of, l, p := r.of(ask)
	l.seen(r.now, p)
	number := perStep*s.Number + i
	r.receipt(s, i, receipt{ledger: of, number: number, made: a.Granted > 0, units: a.Granted})
	most := ask.Units
	if s.Estimate {
		most *= 2
	}
	if a.Allowed != (a.Granted > 0) || a.Granted > most {
		return fmt.Errorf("%v of %v units granted, allowed is %v", a.Granted, ask.Units, a.Allowed)
	}
	if !a.Allowed {
		return nil
	}
	r.admitted++
	if l.latest < l.blockedUntil {
		return fmt.Errorf("granted while the key was blocked for another %d µs", l.blockedUntil-l.latest)
	}
	if l.leased && l.algorithm == limiter.FixedWindow && !p.Aligned && p.Calendar == "" { // a block may have begun the window
		l.endsAt = a.At.Add(a.ResetAfter).UnixMicro()
	}
	e := l.add(number, r.now, p, a.Granted)
	e.turn, e.admitted = a.Delay, true
	return l.check()
}

// several records the answers to all requests of a step.
func (r *account) several(s *Step, a verbs.Answer) error {
	for i := range s.Asks {
		of, l, p := r.of(&s.Asks[i])
		switch {
		case a.Err != nil:
			l.seen(r.now, p)
		case a.Allowed || s.Op != "all":
			if s.Idempotency != "" && !a.PerRequest[i].Shadowed {
				if err := r.once(l, s, a.PerRequest[i], -1); err != nil || a.PerRequest[i].Replayed {
					l.seen(r.now, p)
					r.receipt(s, i, receipt{ledger: of})
					if err != nil {
						return err
					}
					continue
				}
			}
			if err := r.decided(s, i, &s.Asks[i], a.PerRequest[i]); err != nil {
				return err
			}
		default:
			l.seen(r.now, p)
			r.receipt(s, i, receipt{ledger: of})
		}
	}
	return expected(a.Err)
}

// once checks an answer under an idempotency key. A replayed answer admits nothing, and
// has an admission before it that was not rolled back. What is certainly remembered is not
// admitted again.
func (r *account) once(l *ledger, s *Step, a limiter.Result, reservation int) error {
	if !a.Allowed {
		return nil
	}
	i := slices.IndexFunc(l.remembered, func(m admission) bool { return m.key == s.Idempotency })
	switch {
	case a.Replayed && i < 0:
		return errors.New("replayed what was not admitted")
	case a.Replayed:
		return nil
	case i >= 0:
		m := l.remembered[i]
		freed := false
		if m.reservation >= 0 {
			freed = r.books.reservations[m.reservation].freed
		}
		if m.until > max(r.now, l.latest) && !freed {
			return errors.New("admitted again under its idempotency key")
		}
		l.remembered = slices.Delete(l.remembered, i, i+1)
	}
	l.remembered = append(l.remembered, admission{s.Idempotency, r.now + s.For.Microseconds() + Remember.Microseconds(), reservation})
	return nil
}

// undo gives an earlier answer back, to its key or another.
func (r *account) undo(s *Step, back limiter.Result) error {
	of, l, p := r.of(&s.Ask)
	receipts := r.receipts[s.Of]
	a := receipts[s.which(len(receipts))]
	l.seen(r.now, p)
	r.receipt(s, 0, receipt{ledger: of})
	switch {
	case !a.made && back.Granted != 0:
		return fmt.Errorf("%v units went back for an answer that granted nothing", back.Granted)
	case back.Granted > a.units:
		return fmt.Errorf("%v units went back for an answer that granted %v", back.Granted, a.units)
	}
	if back.Granted > 0 {
		r.gaveBack++
	}
	if a.ledger == of {
		l.giveBack(a.number, back.Granted)
	} else {
		l.refund(back.Granted)
	}
	return nil
}

// reserve records a reservation.
func (r *account) reserve(s *Step, made verbs.Answer) error {
	of, l, p := r.of(&s.Ask)
	a := made.PerRequest[0]
	if s.Idempotency != "" {
		if err := r.once(l, s, a, len(r.books.reservations)); err != nil || a.Replayed {
			r.receipt(s, 0, receipt{ledger: of})
			return err
		}
	}
	if err := r.decided(s, 0, &s.Ask, a); err != nil {
		return err
	}
	r.receipt(s, 0, receipt{ledger: of}) // Undo gives nothing back for it
	if a.Allowed {
		e := l.entries[len(l.entries)-1]
		r.books.reservations = append(r.books.reservations, reservation{
			step: s.Number, ledger: of, entry: e.number, policy: *p, units: a.Granted, earliest: e.latest, endsAt: e.endsAt,
			expires: e.earliest + s.For.Microseconds(), state: open,
		})
	}
	return nil
}

// expire gives back what reservations have that may be expired: the next denial or sweep
// may do that, at any time from now on.
func (r *account) expire() {
	for i := range r.books.reservations {
		h := &r.books.reservations[i]
		if h.state == open && max(r.now, r.books.keys[h.ledger].latest) >= h.expires {
			h.state, h.freed = expired, true
			r.books.keys[h.ledger].mayExpire = !h.reset || r.books.keys[h.ledger].mayExpire
			r.shrinkTo(h, 0, h.expires)
		}
	}
}

// shrinkTo gives back what a reservation gives back at a time, if it is settled with
// units: all but what has leaked of it.
func (r *account) shrinkTo(h *reservation, units float64, at int64) {
	l := &r.books.keys[h.ledger]
	i := slices.IndexFunc(l.entries, func(e entry) bool { return e.number == h.entry })
	if h.reset || i < 0 {
		return
	}
	e := &l.entries[i]
	leaked := 0.0
	if !math.IsInf(e.rate, 1) {
		leaked = e.rate * float64(max(0, at-h.earliest)/e.tick*e.tick)
	}
	back := max(0, min(h.units-units, h.units-leaked))
	more := back - h.back
	// An expired one is given back at a later step, for which the clock may be set back.
	over := e.endsAt != l.endsAt || r.now >= e.endsAt && !(h.state == expired && more > 0)
	switch {
	case l.algorithm == limiter.FixedWindow && over: // to its own window only
		e.kept = max(0, e.kept-max(0, more)) // and a late Settle adds nothing to it
	case more > 0 && h.back > 0 && h.own && !l.outpaced(e) && e.kept+h.back == e.units: // more of it
		e.kept -= more
	case more > 0:
		h.own = l.giveBack(h.entry, more)
	case units > e.kept && h.own && e.kept+h.back == e.units: // it had expired, and is settled late
		e.kept = units
	}
	h.back = max(h.back, back)
}

// settle ends a reservation. Cancel is a Settle with 0 units.
func (r *account) settle(s *Step, ended verbs.Answer) error {
	i := slices.IndexFunc(r.books.reservations, func(h reservation) bool { return h.step == s.Of })
	if i < 0 {
		return nil
	}
	h := &r.books.reservations[i]
	l := &r.books.keys[h.ledger]
	units, becomes, err := s.Units, settled, ended.Err
	var a limiter.Result
	if s.Op == "cancel" {
		units, becomes = 0, cancelled
	} else {
		r.receipt(s, 0, receipt{ledger: h.ledger})
	}
	if err != nil {
		if h.state == open && !errors.Is(err, limiter.ErrOverloaded) {
			return fmt.Errorf("the reservation is open: %w", err)
		}
		return expected(err)
	}
	if s.Op == "settle" {
		a = ended.PerRequest[0]
	}
	l.seen(r.now, nil)
	switch h.state {
	case settled:
		if becomes == cancelled || !a.Replayed {
			return errors.New("settled twice")
		}
		return nil
	case cancelled:
		if becomes == settled {
			return errors.New("settled after a cancel")
		}
		return nil
	case expired:
		if becomes == cancelled { // it stays expired
			r.shrinkTo(h, 0, l.latest)
			return nil
		}
	}
	r.gaveBack++
	counted := h.units
	if h.reset {
		counted = 0
	}
	r.shrinkTo(h, min(units, h.units), max(l.earliest, r.now))
	h.state, h.freed = becomes, h.freed || becomes == cancelled
	if units > counted && (l.algorithm != limiter.FixedWindow || r.now < h.endsAt) {
		if l.algorithm == limiter.FixedWindow && r.now >= l.endsAt { // after a Reset its window begins again
			l.endsAt = h.endsAt
		}
		l.add(perStep*s.Number, r.now, &h.policy, units-counted)
	}
	return nil
}
