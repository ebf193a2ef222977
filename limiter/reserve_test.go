package limiter

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// budget is 25 units a month.
var budget = Policy{Name: "budget", Algorithm: FixedWindow, Limit: 25, Calendar: Month}

// reserved is what a ReserveUpTo should have answered.
func (r *Reservation) expect(t *testing.T, what string, err error, granted float64, replayed bool) {
	t.Helper()
	if err != nil || r.Result.Granted != granted || r.Result.Allowed != (granted > 0) || (r.ID != "") != (granted > 0) || r.Result.Replayed != replayed {
		t.Errorf("%s: %+v, %v, want %v units", what, r, err, granted)
	}
}

// TestReserveUpToAgain: a retry returns the same reservation, and holds no more. A mismatch is told.
func TestReserveUpToAgain(t *testing.T) {
	t.Parallel()
	l, ctx := NewMemory(nil), t.Context()
	must.OK(l.AllowN(ctx, budget, "k", 22))(t)
	once := func(key string, cost float64) Request {
		return Request{Policy: budget, Key: "k", Cost: cost, IdempotencyKey: key}
	}
	first, err := l.ReserveUpTo(ctx, once("a", 10), time.Hour)
	first.expect(t, "first", err, 3, false)
	if _, err := l.Refund(ctx, budget, "k", 9); err != nil { // more would fit now
		t.Fatal(err)
	}
	again, err := l.ReserveUpTo(ctx, once("a", 10), time.Hour)
	again.expect(t, "again", err, 3, true)
	if again.ID != first.ID || !again.ExpiresAt.Equal(first.ExpiresAt) || again.Result.RetryAfter != 0 || again.Result.Level != 25 {
		t.Errorf("again: %+v, want the first: %+v", again, first)
	}
	if u, err := l.Usage(ctx, budget, "k"); err != nil || u.Reserved != 3 || u.Reservations != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	full, err := l.ReserveUpTo(ctx, once("b", 2), time.Hour)
	full.expect(t, "all fits", err, 2, false)
	same, err := l.Reserve(ctx, once("b", 2), time.Hour)
	same.expect(t, "Reserve of what was reserved in full", err, 2, true)
	for what, f := range map[string]func() (Reservation, error){
		"a larger cost":       func() (Reservation, error) { return l.ReserveUpTo(ctx, once("a", 11), time.Hour) },
		"what was reserved":   func() (Reservation, error) { return l.ReserveUpTo(ctx, once("a", 3), time.Hour) },
		"Reserve of the cost": func() (Reservation, error) { return l.Reserve(ctx, once("a", 10), time.Hour) },
		"Reserve of 3":        func() (Reservation, error) { return l.Reserve(ctx, once("a", 3), time.Hour) },
		"Do": func() (Reservation, error) {
			r, err := l.Do(ctx, once("a", 10))
			return Reservation{Result: r}, err
		},
	} {
		if r, err := f(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
}

// TestReserveUpToFractions: all of a fractional cost counts as all of it.
func TestReserveUpToFractions(t *testing.T) {
	t.Parallel()
	l, ctx := NewMemory(nil), t.Context()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 0.7, Period: time.Hour}
	for range 2 {
		h, err := l.ReserveUpTo(ctx, Request{Policy: p, Key: "k", Cost: 1. / 3, IdempotencyKey: "a"}, time.Hour)
		h.expect(t, "a third", err, 1./3, h.Result.Replayed)
	}
	for _, replayed := range []bool{false, true} {
		h, err := l.ReserveUpTo(ctx, Request{Policy: p, Key: "k", Cost: 0.5, IdempotencyKey: "b"}, time.Hour)
		if g := h.Result.Granted; err != nil || g > 0.7-1./3 || g < 0.366 || h.Result.Replayed != replayed {
			t.Errorf("%+v, %v", h, err)
		}
	}
}

// TestReserveUpToInShadow: a shadow policy lets the whole pass and reserves what fits; Settle
// counts what was spent.
func TestReserveUpToInShadow(t *testing.T) {
	t.Parallel()
	l, ctx := NewMemory(nil), t.Context()
	p := budget
	p.Shadow = true
	request := Request{Policy: p, Key: "k", Cost: 30, IdempotencyKey: "a"}
	first, err := l.ReserveUpTo(ctx, request, time.Hour)
	first.expect(t, "in part", err, 30, false)
	again, err := l.ReserveUpTo(ctx, request, time.Hour)
	again.expect(t, "again", err, 30, true)
	if !first.Result.Shadowed || !again.Result.Shadowed || first.ID != again.ID {
		t.Errorf("%+v, %+v", first, again)
	}
	denied, err := l.ReserveUpTo(ctx, p.Request("k", 1), time.Hour)
	denied.expect(t, "denied", err, 1, false)
	if r, err := l.Settle(ctx, denied.ID, 1); err != nil || r.Source != SourceSkipped {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := l.Settle(ctx, first.ID, 27); err != nil || r.Level != 27 {
		t.Errorf("%+v, %v", r, err)
	}
}

// spend makes n estimates of cost units and settles each with what was really spent.
func spend(t *testing.T, l *Limiter, p Policy, key string, n int, cost, spent float64) (last float64) {
	t.Helper()
	for range n {
		h, err := l.Reserve(t.Context(), Request{Policy: p, Key: key, Cost: cost, Estimate: true}, time.Hour)
		if err != nil || !h.Result.Allowed {
			t.Fatalf("%+v, %v", h, err)
		}
		last = h.Result.Granted
		must.OK(l.Settle(t.Context(), h.ID, spent))(t)
	}
	return last
}

// TestEstimateLearns: after ten settlements at a fifth of the estimates, a budget of 25 holds 25
// callers that estimate 5.
func TestEstimateLearns(t *testing.T) {
	t.Parallel()
	l, ctx := NewMemory(nil), t.Context()
	if last := spend(t, l, budget, "k", 10, 5, 1); last != 1 {
		t.Errorf("the last estimate of 5 reserved %v", last)
	}
	must.OK(l.Refund(ctx, budget, "k", 10))(t)
	for _, upTo := range []bool{false, true} {
		reserve := l.Reserve
		if upTo {
			reserve = l.ReserveUpTo
		}
		var ids []string
		for i := range 26 {
			h, err := reserve(ctx, Request{Policy: budget, Key: "k", Cost: 5, Estimate: true}, time.Hour)
			if err != nil || h.Result.Allowed != (i < 25) || h.Result.Allowed && h.Result.Granted != 1 {
				t.Errorf("caller %d: %+v, %v", i, h, err)
			}
			ids = append(ids, h.ID)
		}
		for _, id := range ids[:25] {
			if err := l.Cancel(ctx, id); err != nil { // it says nothing of estimates
				t.Fatal(err)
			}
		}
	}
	for what, r := range map[string]Request{ // and Reserve takes the cost as it is
		"another key":        {Policy: budget, Key: "other", Cost: 5, Estimate: true},
		"another policy":     {Policy: PerHour("other", 25), Key: "k", Cost: 5, Estimate: true},
		"another algorithm":  {Policy: PerHour("budget", 25), Key: "k", Cost: 5, Estimate: true},
		"not an estimate":    {Policy: budget, Key: "k", Cost: 5},
		"a fraction of 0.2":  {Policy: budget, Key: "k", Cost: 12.5, Estimate: true},
		"a cost above all":   {Policy: budget, Key: "k", Cost: 60, Estimate: true},
		"rounded up":         {Policy: budget, Key: "k", Cost: 6, Estimate: true},
		"at least a unit":    {Policy: budget, Key: "k", Cost: 1, Estimate: true},
		"an idempotency key": {Policy: budget, Key: "k", Cost: 5, Estimate: true, IdempotencyKey: "a"},
	} {
		want := map[string]float64{"a fraction of 0.2": 2.5, "a cost above all": 12, "rounded up": 2, "at least a unit": 1, "an idempotency key": 1}[what]
		if want == 0 {
			want = 5
		}
		h, err := l.Reserve(ctx, r, time.Hour)
		h.expect(t, what, err, want, false)
		must.Succeed(t, l.Cancel(ctx, h.ID))
	}
}

// TestEstimateBounds: the factor is from 0.1 to 2, and 1 until there are 5 estimates. A cost
// that fits into an unused key still does.
func TestEstimateBounds(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1e6, Period: time.Hour}
	for key, c := range map[string]struct{ spent, sixth float64 }{"least": {0, 10}, "most": {5000, 200}, "between": {130, 130}} {
		if got := spend(t, l, p, key, 5, 100, c.spent); got != 100 {
			t.Errorf("%s: the fifth reserved %v", key, got)
		}
		if got := spend(t, l, p, key, 1, 100, c.spent); got != c.sixth {
			t.Errorf("%s: the sixth reserved %v, want %v", key, got, c.sixth)
		}
	}
	small := Policy{Name: "small", Algorithm: FixedWindow, Limit: 25.5, Period: time.Hour}
	for range 5 {
		spend(t, l, small, "k", 1, 5, 10)
		must.Succeed(t, l.Reset(t.Context(), small, "k"))
	}
	h, err := l.Reserve(t.Context(), Request{Policy: small, Key: "k", Cost: 15, Estimate: true}, time.Hour)
	h.expect(t, "twice 15, of 25", err, 25, false)
}

// TestEstimateConverges: however long it learns, an estimate of 100 that really costs 30, and then
// 150, comes to reserve that, and stays there.
func TestEstimateConverges(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1e9, Period: time.Hour}
	for _, really := range []float64{30, 150} {
		spend(t, l, p, "k", 20, 100, really)
		for range 100 {
			if got := spend(t, l, p, "k", 1, 100, really); got != really {
				t.Fatalf("%v of 100 units were spent, and %v reserved", really, got)
			}
		}
	}
}

// TestEstimateInPart: what was reserved in part says nothing of an estimate, and a retry under an
// idempotency key returns what was reserved, whatever was learnt since.
func TestEstimateInPart(t *testing.T) {
	t.Parallel()
	l, ctx := NewMemory(nil), t.Context()
	once := Request{Policy: budget, Key: "k", Cost: 5, Estimate: true, IdempotencyKey: "a"}
	first, err := l.Reserve(ctx, once, time.Hour)
	first.expect(t, "first", err, 5, false)
	for range 5 {
		must.OK(l.AllowN(ctx, budget, "k", 18))(t)
		part, err := l.ReserveUpTo(ctx, Request{Policy: budget, Key: "k", Cost: 5, Estimate: true}, time.Hour)
		part.expect(t, "in part", err, 2, false)
		must.OK(l.Settle(ctx, part.ID, 0))(t)
		must.OK(l.Refund(ctx, budget, "k", 18))(t)
	}
	if got := spend(t, l, budget, "k", 5, 5, 1); got != 5 {
		t.Errorf("the fifth reserved %v", got)
	}
	if got := spend(t, l, budget, "k", 1, 5, 1); got != 1 {
		t.Errorf("the sixth reserved %v", got)
	}
	again, err := l.Reserve(ctx, once, time.Hour)
	again.expect(t, "again", err, 5, true)
	once.Cost = 4
	if r, err := l.Reserve(ctx, once, time.Hour); !errors.Is(err, ErrInvalid) {
		t.Errorf("another cost: %+v, %v", r, err)
	}
	once.Cost, once.Estimate, once.IdempotencyKey = 5, true, "b"
	must.OK(l.Reserve(ctx, once, time.Hour))(t)
	once.Estimate = false
	if r, err := l.Reserve(ctx, once, time.Hour); !errors.Is(err, ErrInvalid) {
		t.Errorf("all of the cost, after an estimate of it: %+v, %v", r, err)
	}
}

// TestEstimateElsewhere: other methods refuse it, and an invalid request is refused before
// anything is read.
func TestEstimateElsewhere(t *testing.T) {
	t.Parallel()
	l, s := watched(t, true, &Config{})
	ctx, r := t.Context(), Request{Policy: budget, Key: "k", Cost: 5, Estimate: true}
	queue := Policy{Name: "q", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Hour}
	_, do := l.Do(ctx, r)
	_, all := l.AllowAll(ctx, r)
	_, wait := l.DoWait(ctx, Request{Policy: queue, Key: "k", Cost: 1, Estimate: true})
	for what, err := range map[string]error{"Do": do, "AllowAll": all, "DoWait": wait} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.Cost = -1
	if _, err := l.Reserve(ctx, r, time.Hour); !errors.Is(err, ErrInvalid) || len(s.sent()) > 0 {
		t.Errorf("%v, sent %v", err, s.sent())
	}
	s.set(errors.New("away"))
	r.Cost = 5
	if _, err := l.Reserve(ctx, r, time.Hour); err == nil {
		t.Error("a reservation without a database")
	}
	r.Policy.Shadow = true
	h, err := l.Reserve(ctx, r, time.Hour)
	if h.expect(t, "a shadow", err, 5, false); h.Result.Source != SourceDegraded {
		t.Errorf("%+v", h)
	}
}
