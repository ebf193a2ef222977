package limiter

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestRefundable: what may go back, to the very end of it.
func TestRefundable(t *testing.T) {
	p := Policy{Name: "p", Limit: 60, Period: time.Minute, Burst: 100}
	of := func(a Algorithm, change ...func(*Policy)) Policy {
		p := p
		p.Algorithm = a
		for _, c := range change {
			c(&p)
		}
		return p
	}
	window := func(p *Policy) { p.Burst = 0 }
	monthly := Policy{Name: "p", Algorithm: FixedWindow, Limit: 60, Calendar: Month}
	granted := Result{Allowed: true, Granted: 10, ResetAfter: 80 * time.Second}
	for _, c := range []struct {
		name string
		p    Policy
		r    Result
		age  time.Duration
		want float64
	}{
		{"at once", of(TokenBucket), granted, 0, 10},
		{"a clock set back", of(TokenBucket), granted, -time.Hour, 10},
		{"some has leaked", of(LeakyBucket), granted, 4 * time.Second, 6},
		{"a microsecond less", of(GCRA), granted, 1500*time.Microsecond + 999, 10 - 0.0015},
		{"all has leaked", of(GCRA), granted, 10 * time.Second, 0},
		{"less than can be asked for", of(GCRA), Result{Allowed: true, Granted: 1.05e-6}, time.Microsecond, 0},
		{"before a tick", of(LeakyBucket, func(p *Policy) { p.Tick = 5 * time.Second }), granted, 5*time.Second - 1, 10},
		{"after a tick", of(LeakyBucket, func(p *Policy) { p.Tick = 5 * time.Second }), granted, 5 * time.Second, 5},
		{"the tick had begun before", of(LeakyBucket, func(p *Policy) { p.Tick = 9 * time.Second }), granted, 8*time.Second - 1, 10},
		{"and ends", of(LeakyBucket, func(p *Policy) { p.Tick = 9 * time.Second }), granted, 8 * time.Second, 1},
		{"a queue", of(LeakyBucketQueue), granted, 0, 0},
		{"the window lasts", of(FixedWindow, window), granted, 80*time.Second - 1, 10},
		{"the window has ended", of(FixedWindow, window), granted, 80 * time.Second, 0},
		{"the month lasts", monthly, granted, 80*time.Second - 1, 10},
		{"the month has ended", monthly, granted, 80 * time.Second, 0},
		{"the counter's window lasts", of(SlidingWindowCounter, window), granted, 20*time.Second - 1, 10},
		{"it is the one before", of(SlidingWindowCounter, window), granted, 20 * time.Second, 0},
		{"the entry is there", of(SlidingWindowLog, window), granted, time.Minute - 1, 10},
		{"the entry has left", of(SlidingWindowLog, window), granted, time.Minute, 0},
		{"part was granted", of(TokenBucket), Result{Allowed: true, Granted: 3}, time.Second, 2},
		{"denied", of(TokenBucket), Result{Granted: 10}, 0, 0},
		{"without a decision", of(TokenBucket), Result{Allowed: true, Granted: 10, Source: SourceDegraded}, 0, 0},
		{"answered before", of(TokenBucket), Result{Allowed: true, Granted: 10, Replayed: true}, 0, 0},
	} {
		if err := c.p.Validate(); err != nil {
			t.Fatal(err)
		}
		if got := c.p.Refundable(c.r, c.age); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRefundableLetsNothingPassTwice: of asks some turn out to count for nothing and
// are given back later. What passes beside them would have passed without them too.
// Windows are aligned: else the first ask sets when they end.
func TestRefundableLetsNothingPassTwice(t *testing.T) {
	type request struct {
		units float64
		r     Result
		at    time.Time
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
		{Algorithm: FixedWindow, Aligned: true}, {Algorithm: SlidingWindowCounter},
	} {
		p.Name, p.Limit, p.Period = "p", 10, 10*time.Second
		for seed := range uint64(300) {
			random := rand.New(rand.NewPCG(seed, 1))
			now, advance := manualClock()
			real, without := NewMemory(&Config{Now: now}), NewMemory(&Config{Now: now})
			var open []request
			for range 60 {
				advance(time.Duration(random.Int64N(2e6)) * time.Microsecond)
				if p.Tick > 0 && (level(real, p) == 0 || level(without, p) == 0) { // both start their ticks alike
					advance(now().Truncate(p.Tick).Add(p.Tick).Sub(now()))
				}
				units := float64(1 + random.IntN(5))
				r, err := real.AllowN(t.Context(), p, "k", units)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case r.Allowed && random.IntN(2) == 0:
					open = append(open, request{units: units, r: r, at: now()})
				case r.Allowed:
					passes++
					if r, err := without.AllowN(t.Context(), p, "k", units); err != nil || !r.Allowed {
						t.Fatalf("%+v, seed %d: %v units passed, which would not without what went back: %+v, %v", p, seed, units, r, err)
					}
				}
				for len(open) > 0 && random.IntN(3) == 0 {
					i := random.IntN(len(open))
					q := open[i]
					open = slices.Delete(open, i, i+1)
					units := p.Refundable(q.r, now().Sub(q.at))
					if units == 0 {
						continue
					}
					refunds++
					if units < q.units {
						partly++
					}
					if _, err := real.Refund(t.Context(), p, "k", units); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	if passes < 10000 || refunds < 3000 || partly < 500 {
		t.Errorf("%d passed, %d refunds of which %d in part: too few to tell", passes, refunds, partly)
	}
}
