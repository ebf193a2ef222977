package search

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/pglimit/pglimit/limiter"
)

// step makes one call and records what it did.
func (r *run) step(s *Step, at int64) error {
	ctx, d := context.Background(), r.decider()
	asked := r.policies[s.Policy]
	of, key := r.ledgerOf(s.Policy, s.Key), keys[s.Key]
	p := r.effective(s.Policy, of)
	l := &r.books.keys[of]
	request := asked.Request(key, s.Units)
	request.IdempotencyKey = s.Idempotency
	switch s.Op {
	case "begin":
		return r.begin()
	case "commit":
		return r.end(true)
	case "roll back":
		return r.end(false)
	case "sweep":
		if r.Sweep == nil || len(r.open) > 0 {
			return nil
		}
		r.floor = at
		return r.Sweep()
	case "override":
		if len(r.open) > 0 {
			return nil
		}
		return r.changeOverride(s)
	case "allow", "up to", "once":
		fresh := !l.touched
		var a limiter.Result
		var err error
		switch s.Op {
		case "allow":
			a, err = d.AllowN(ctx, asked, key, s.Units)
		case "up to":
			a, err = d.AllowUpTo(ctx, asked, key, s.Units)
		default:
			a, err = d.Do(ctx, request)
		}
		if err != nil {
			l.seen(r.now, p)
			return expected(err)
		}
		if fresh && !a.Allowed && s.Units <= burstOf(p) && r.history.MaxKeys == 0 {
			return fmt.Errorf("an unused key denied %v units: %+v", s.Units, a)
		}
		if s.Op == "once" {
			if err := r.once(l, s, a, -1); err != nil || a.Replayed {
				r.remember(s, 0, answer{result: a, ledger: of})
				return err
			}
		}
		return r.decided(s, 0, of, p, a)
	case "all":
		return r.all(ctx, d, s)
	case "check":
		a, err := d.Check(ctx, asked, key, s.Units)
		if l.mayExpire {
			l.seen(r.now, nil)
		}
		r.remember(s, 0, answer{result: a, ledger: of})
		return expected(err)
	case "usage":
		_, err := d.Usage(ctx, asked, key)
		return expected(err)
	case "charge":
		a, err := d.Charge(ctx, asked, key, s.Units)
		if err != nil {
			return expected(err)
		}
		r.remember(s, 0, answer{result: a, ledger: of})
		l.seen(r.now, p)
		if a.Granted > 0 {
			l.add(2*s.Number, r.now, p, a.Granted)
		}
		return nil
	case "refund":
		a, err := d.Refund(ctx, asked, key, s.Units)
		if err != nil {
			return expected(err)
		}
		if a.Granted > s.Units {
			return fmt.Errorf("%v units went back", a.Granted)
		}
		r.remember(s, 0, answer{result: a, ledger: of})
		l.seen(r.now, p)
		l.refund(a.Granted)
		return nil
	case "undo":
		return r.undo(ctx, d, s, of, p)
	case "reserve":
		return r.reserve(ctx, d, s, of, p, request)
	case "settle", "cancel":
		return r.settle(ctx, d, s)
	case "block":
		if err := d.Block(ctx, asked, key, s.For); err != nil {
			return expected(err)
		}
		l.blockedUntil = max(l.blockedUntil, max(l.earliest, r.now)+s.For.Microseconds())
		l.seen(r.now, nil)
		return nil
	case "unblock":
		l.blockedUntil = 0
		return expected(d.Unblock(ctx, asked, key))
	case "reset":
		if err := d.Reset(ctx, asked, key); err != nil {
			return expected(err)
		}
		l.reset()
		for i := range r.books.reservations {
			if h := &r.books.reservations[i]; h.ledger == of {
				h.reset = true
			}
		}
		return nil
	}
	panic(s.Op)
}

// expected returns nil for errors that a valid history may meet.
func expected(err error) error {
	for _, known := range []error{limiter.ErrOverloaded, limiter.ErrUnsupported, limiter.ErrInvalid, limiter.ErrNoReservation, limiter.ErrReservationEnded} {
		if errors.Is(err, known) {
			return nil
		}
	}
	return err
}

func (r *run) remember(s *Step, i int, a answer) {
	both := r.answers[s.Number]
	both[i] = a
	r.answers[s.Number] = both
}

// decided records the answer to a request, the i-th of its step.
func (r *run) decided(s *Step, i, of int, p *limiter.Policy, a limiter.Result) error {
	l := &r.books.keys[of]
	l.seen(r.now, p)
	number := 2*s.Number + i
	r.remember(s, i, answer{result: a, ledger: of, number: number, made: a.Granted > 0, units: a.Granted})
	if a.Allowed != (a.Granted > 0) || a.Granted > s.Units {
		return fmt.Errorf("%v of %v units granted, allowed is %v", a.Granted, s.Units, a.Allowed)
	}
	if !a.Allowed {
		return nil
	}
	r.Admitted++
	if l.latest < l.blockedUntil {
		return fmt.Errorf("granted while the key was blocked for another %d µs", l.blockedUntil-l.latest)
	}
	e := l.add(number, r.now, p, a.Granted)
	e.turn, e.admitted = a.Delay, true
	return l.check()
}

// all requests from both keys at once, or from one of them twice.
func (r *run) all(ctx context.Context, d limiter.Decider, s *Step) error {
	p := r.policies[s.Policy]
	second := 1 - s.Key
	if s.Second {
		second = s.Key
	}
	both, err := d.AllowAll(ctx, p.Request(keys[s.Key], s.Units), p.Request(keys[second], s.Units))
	for i, key := range []int{s.Key, second} {
		of := r.ledgerOf(s.Policy, key)
		switch {
		case err != nil:
			r.books.keys[of].seen(r.now, r.effective(s.Policy, of))
			continue
		case both.Allowed:
			if err := r.decided(s, i, of, r.effective(s.Policy, of), both.PerRequest[i]); err != nil {
				return err
			}
		default:
			r.books.keys[of].seen(r.now, r.effective(s.Policy, of))
			r.remember(s, i, answer{result: both.PerRequest[i], ledger: of})
		}
	}
	return expected(err)
}

// once checks an answer under an idempotency key. A replayed answer admits nothing, and
// has an admission before it that was not rolled back. What is certainly remembered is not
// admitted again.
func (r *run) once(l *ledger, s *Step, a limiter.Result, reservation int) error {
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
func (r *run) undo(ctx context.Context, d limiter.Decider, s *Step, of int, p *limiter.Policy) error {
	both, ok := r.answers[s.Of]
	if !ok {
		return nil
	}
	a := both[0]
	if s.Second && both[1].result.Limit != 0 {
		a = both[1]
	}
	l := &r.books.keys[of]
	back, err := d.Undo(ctx, r.policies[s.Policy], keys[s.Key], a.result)
	if err != nil {
		return expected(err)
	}
	l.seen(r.now, p)
	r.remember(s, 0, answer{result: back, ledger: of})
	switch {
	case !a.made && back.Granted != 0:
		return fmt.Errorf("%v units went back for an answer that granted nothing", back.Granted)
	case back.Granted > a.units:
		return fmt.Errorf("%v units went back for an answer that granted %v", back.Granted, a.units)
	}
	if back.Granted > 0 {
		r.GaveBack++
	}
	if a.ledger == of {
		l.giveBack(a.number, back.Granted)
	} else {
		l.refund(back.Granted)
	}
	return nil
}

// reserve records a reservation.
func (r *run) reserve(ctx context.Context, d limiter.Decider, s *Step, of int, p *limiter.Policy, request limiter.Request) error {
	l := &r.books.keys[of]
	made, err := d.Reserve(ctx, request, s.For)
	if err != nil {
		l.seen(r.now, p)
		return expected(err)
	}
	a := made.Result
	r.remember(s, 0, answer{result: a, ledger: of})
	if s.Idempotency != "" {
		if err := r.once(l, s, a, len(r.books.reservations)); err != nil || a.Replayed {
			return err
		}
	}
	if err := r.decided(s, 0, of, p, a); err != nil {
		return err
	}
	r.remember(s, 0, answer{result: a, ledger: of}) // Undo gives nothing back for it
	if a.Allowed {
		e := l.entries[len(l.entries)-1]
		r.books.reservations = append(r.books.reservations, reservation{
			step: s.Number, id: made.ID, ledger: of, entry: e.number, policy: *p, units: a.Granted, earliest: e.latest, endsAt: e.endsAt,
			expires: e.earliest + s.For.Microseconds(), state: open,
		})
	}
	return nil
}

// expire gives back what reservations have that may be expired: the next denial or sweep
// may do that, at any time from now on.
func (r *run) expire() {
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
func (r *run) shrinkTo(h *reservation, units float64, at int64) {
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
func (r *run) settle(ctx context.Context, d limiter.Decider, s *Step) error {
	i := slices.IndexFunc(r.books.reservations, func(h reservation) bool { return h.step == s.Of })
	if i < 0 {
		return nil
	}
	h := &r.books.reservations[i]
	if h.reset && h.state == expired {
		return nil // it is not known what a Settle would still add
	}
	l := &r.books.keys[h.ledger]
	units, becomes := s.Units, settled
	var err error
	var a limiter.Result
	if s.Op == "cancel" {
		units, becomes = 0, cancelled
		err = d.Cancel(ctx, h.id)
	} else {
		a, err = d.Settle(ctx, h.id, units)
		r.remember(s, 0, answer{result: a, ledger: h.ledger})
	}
	if err != nil {
		if h.state == open && !errors.Is(err, limiter.ErrOverloaded) {
			return fmt.Errorf("the reservation is open: %w", err)
		}
		return expected(err)
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
	r.GaveBack++
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
		l.add(2*s.Number, r.now, &h.policy, units-counted)
	}
	return nil
}
