package limiter

import (
	"errors"
	"testing"
	"time"
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
	if _, err := l.AllowN(ctx, budget, "k", 22); err != nil {
		t.Fatal(err)
	}
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
