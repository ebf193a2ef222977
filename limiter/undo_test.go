package limiter

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// TestUndo: what is undone does not pass twice. One request is granted, another one follows
// later, and the first is undone after that.
func TestUndo(t *testing.T) {
	for name, c := range map[string]struct {
		policy           Policy
		first            float64       // units of the first request
		wait             time.Duration // until the next
		next, then, back float64       // its units, and what is granted of 1,000 after the Undo gave units back
	}{
		"leaked, and used by the next":   {Policy{Algorithm: TokenBucket}, 100, 5 * time.Second, 50, 50, 50},
		"all leaked":                     {Policy{Algorithm: LeakyBucket}, 50, 5 * time.Second, 50, 50, 0},
		"whole ticks have leaked":        {Policy{Algorithm: LeakyBucket, Tick: 4 * time.Second}, 100, 6 * time.Second, 40, 60, 60},
		"nothing leaked":                 {Policy{Algorithm: GCRA}, 60, 0, 40, 60, 60},
		"in the window":                  {Policy{Algorithm: FixedWindow}, 50, 8 * time.Second, 50, 50, 50},
		"after the window":               {Policy{Algorithm: FixedWindow}, 50, 11 * time.Second, 50, 50, 0},
		"in the previous window":         {Policy{Algorithm: SlidingWindowCounter}, 50, 10 * time.Second, 50, 50, 50},
		"two windows later":              {Policy{Algorithm: SlidingWindowCounter}, 50, 20 * time.Second, 50, 50, 0},
		"an entry that is not the last":  {Policy{Algorithm: SlidingWindowLog}, 50, 8 * time.Second, 50, 50, 50},
		"an entry that has left the log": {Policy{Algorithm: SlidingWindowLog}, 50, 10 * time.Second, 50, 50, 0},
	} {
		now, advance := manualClock()
		l := NewMemory(&Config{Now: now})
		p := c.policy
		p.Name, p.Limit, p.Period = "p", 100, 10*time.Second
		first, err := l.AllowN(t.Context(), p, "k", c.first)
		if err != nil || !first.Allowed {
			t.Fatalf("%s: %+v, %v", name, first, err)
		}
		advance(c.wait)
		if r, err := l.AllowN(t.Context(), p, "k", c.next); err != nil || !r.Allowed {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		if r, err := l.Undo(t.Context(), p, "k", first); err != nil || math.Abs(r.Granted-c.back) > 1e-9 {
			t.Errorf("%s: %v units went back, %v", name, r.Granted, err)
		}
		if r, err := l.AllowUpTo(t.Context(), p, "k", 1000); err != nil || math.Abs(r.Granted-c.then) > 1e-9 {
			t.Errorf("%s: then %v units passed, %v", name, r.Granted, err)
		}
	}
}

// TestUndoNothing: Undo gives nothing back for a Result that granted nothing or was not a
// decision. All keys are in one window.
func TestUndoNothing(t *testing.T) {
	now, _ := manualClock()
	l := NewMemory(&Config{Now: now})
	ctx := t.Context()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 10, Period: time.Hour, Aligned: true}
	must.OK(l.AllowN(ctx, p, "k", 10))(t)
	denied, _ := l.Allow(ctx, p, "k")
	refund, _ := l.Refund(ctx, p, "k", 1)
	charged, _ := l.Charge(ctx, p, "k", 1)
	reservation, _ := l.Reserve(ctx, p.Request("other", 5), time.Minute)
	check, _ := l.Check(ctx, p, "other", 5)
	settled, _ := l.Settle(ctx, reservation.ID, 5)
	again := p.Request("again", 2)
	again.IdempotencyKey = "x"
	must.OK(l.Do(ctx, again))(t)
	replayed, _ := l.Do(ctx, again)
	all, _ := l.AllowAll(ctx, p.Request("k", 5), p.Request("third", 1))
	ghost := p
	ghost.Shadow = true
	shadowed, _ := l.AllowUpTo(ctx, ghost, "k", 5)
	if !shadowed.Shadowed || shadowed.Granted != 5 || !check.Allowed || !refund.Allowed || !charged.Allowed || !settled.Allowed || !replayed.Replayed || all.Allowed || !all.PerRequest[1].Allowed {
		t.Fatal(check, refund, charged, settled, replayed, all)
	}
	for name, r := range map[string]Result{
		"denied": denied, "check": check, "refund": refund, "charge": charged, "reserve": reservation.Result, "settle": settled,
		"replayed": replayed, "denied with others": all.PerRequest[1], "zero": {Allowed: true, Granted: 5}, "shadowed": shadowed,
	} {
		if got, err := l.Undo(ctx, p, "k", r); err != nil || got.Granted != 0 || !got.Allowed || got.Level != 10 {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	queue := Policy{Name: "q", Algorithm: LeakyBucketQueue, Limit: 10, Period: time.Hour}
	if r, err := l.Allow(ctx, queue, "k"); err != nil {
		t.Error(err)
	} else if _, err := l.Undo(ctx, queue, "k", r); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}
