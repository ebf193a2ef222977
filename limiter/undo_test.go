package limiter

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestUndoOfALog: units given back leave with their own entry. If the newest entries went
// instead, their room would be granted twice.
func TestUndoOfALog(t *testing.T) {
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now})
	p := Policy{Name: "p", Algorithm: SlidingWindowLog, Limit: 100, Period: 10 * time.Second}
	allow := func(n, want float64) Result {
		t.Helper()
		r, err := l.AllowUpTo(t.Context(), p, "k", n)
		if err != nil || r.Granted != want {
			t.Fatalf("requested %v: got %v, want %v (%v)", n, r.Granted, want, err)
		}
		return r
	}
	first := allow(50, 50)
	advance(8 * time.Second)
	allow(50, 50)
	advance(time.Second)
	if r, err := l.Undo(t.Context(), p, "k", first); err != nil || r.Granted != 50 {
		t.Fatal(r, err)
	}
	allow(100, 50)
	advance(2 * time.Second) // the first entry would have left; the others count 100
	allow(1, 0)
}

// TestUndoNothing: Undo gives nothing back for a Result that granted nothing or was not a
// decision. All keys are in one window.
func TestUndoNothing(t *testing.T) {
	now, _ := manualClock()
	l := NewMemory(&Config{Now: now})
	ctx := t.Context()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 10, Period: time.Hour, Aligned: true}
	if _, err := l.AllowN(ctx, p, "k", 10); err != nil {
		t.Fatal(err)
	}
	denied, _ := l.Allow(ctx, p, "k")
	refund, _ := l.Refund(ctx, p, "k", 1)
	charged, _ := l.Charge(ctx, p, "k", 1)
	reservation, _ := l.Reserve(ctx, p.Request("other", 5), time.Minute)
	check, _ := l.Check(ctx, p, "other", 5)
	settled, _ := l.Settle(ctx, reservation.ID, 5)
	again := p.Request("again", 2)
	again.IdempotencyKey = "x"
	if _, err := l.Do(ctx, again); err != nil {
		t.Fatal(err)
	}
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

// TestUndoAfterABlock: a block that extends ResetAfter does not extend the window.
func TestUndoAfterABlock(t *testing.T) {
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now})
	ctx := t.Context()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 10, Period: 10 * time.Second, BlockFor: time.Minute}
	granted, err := l.AllowN(ctx, p, "k", 10)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := l.Allow(ctx, p, "k"); err != nil || r.Allowed {
		t.Fatal(r, err)
	}
	advance(11 * time.Second)
	if err := l.Unblock(ctx, p, "k"); err != nil {
		t.Fatal(err)
	}
	if r, err := l.AllowN(ctx, p, "k", 10); err != nil || !r.Allowed {
		t.Fatal(r, err)
	}
	if r, err := l.Undo(ctx, p, "k", granted); err != nil || r.Granted != 0 || r.Level != 10 {
		t.Errorf("a window that has ended gave back %v: %+v, %v", r.Granted, r, err)
	}
}

// TestUndoLetsNothingPassTwice: some granted requests are undone later. Each other
// request that passes would also have passed without the undone ones. Windows are
// aligned, else the first request would set their ends.
func TestUndoLetsNothingPassTwice(t *testing.T) {
	type request struct {
		units float64
		r     Result
	}
	level := func(l *Limiter, p Policy) float64 {
		r, err := l.Check(t.Context(), p, "k", 0)
		if err != nil {
			t.Fatal(err)
		}
		return r.Level
	}
	passes, refunds, partly := 0, 0, 0
	for _, p := range []Policy{
		{Algorithm: LeakyBucket}, {Algorithm: LeakyBucket, Tick: 4500 * time.Millisecond}, {Algorithm: TokenBucket}, {Algorithm: GCRA},
		{Algorithm: FixedWindow, Aligned: true}, {Algorithm: SlidingWindowCounter}, {Algorithm: SlidingWindowLog},
	} {
		p.Name, p.Limit, p.Period = "p", 10, 10*time.Second
		for seed := range uint64(300) {
			random := rand.New(rand.NewPCG(seed, 1))
			now, advance := manualClock()
			real, without := NewMemory(&Config{Now: now}), NewMemory(&Config{Now: now})
			var open []request
			for range 60 {
				advance(time.Duration(random.Int64N(2e6)) * time.Microsecond)
				if p.Tick > 0 && (level(real, p) == 0 || level(without, p) == 0) { // start the ticks of both at the same time
					advance(now().Truncate(p.Tick).Add(p.Tick).Sub(now()))
				}
				units := float64(1 + random.IntN(5))
				r, err := real.AllowN(t.Context(), p, "k", units)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case r.Allowed && random.IntN(2) == 0:
					open = append(open, request{units: units, r: r})
				case r.Allowed:
					passes++
					if r, err := without.AllowN(t.Context(), p, "k", units); err != nil || !r.Allowed {
						t.Fatalf("%+v, seed %d: %v units passed, which would not have without the undone ones: %+v, %v", p, seed, units, r, err)
					}
				}
				for len(open) > 0 && random.IntN(3) == 0 {
					i := random.IntN(len(open))
					q := open[i]
					open = slices.Delete(open, i, i+1)
					r, err := real.Undo(t.Context(), p, "k", q.r)
					if err != nil {
						t.Fatal(err)
					}
					if r.Granted > 0 {
						refunds++
					}
					if r.Granted > 0 && r.Granted < q.units {
						partly++
					}
				}
			}
		}
	}
	if passes < 10000 || refunds < 3000 || partly < 500 {
		t.Errorf("%d passed, %d refunds of which %d in part: too few to test anything", passes, refunds, partly)
	}
}
