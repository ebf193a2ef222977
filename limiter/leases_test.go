package limiter_test

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/limiter"
)

// lessee is a limiter that takes leases, by clocks and timers that a test moves. What it does in
// the background it does at once.
type lessee struct {
	*limiter.Limiter
	clock  conformance.Clock
	at     time.Duration
	timers []func()
	later  []func() // what it does in the background, if it is held
	held   bool
}

// hot is a policy of which 200 units can be in use, and 10 s are the life of a lease.
var hot = limiter.Policy{Name: "hot", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Second, Burst: 300, Lease: 1. / 3}

func newLessee(config limiter.Config, rows *memory.Store) *lessee {
	s := new(lessee)
	config.Now = s.clock.Now
	s.Limiter = limiter.NewLeasing(rows, &config, limiter.Process{
		Start: func(f func()) {
			if s.held {
				s.later = append(s.later, f)
			} else {
				f()
			}
		},
		After: func(_ time.Duration, f func()) { s.timers = append(s.timers, f) },
	})
	return s
}

// wait moves the clock and looks at all leases.
func (s *lessee) wait(d time.Duration) {
	s.at += d
	s.clock.Set(s.at.Microseconds())
	timers := s.timers
	s.timers = nil
	for _, f := range timers {
		f()
	}
}

// leased makes requests until one is granted from a lease, and returns its Result.
func (s *lessee) leased(t *testing.T, p limiter.Policy) limiter.Result {
	t.Helper()
	for range 100 {
		r, err := s.Allow(t.Context(), p, "all")
		if err != nil || !r.Allowed {
			t.Fatal(r, err)
		}
		if r.Source == limiter.SourceLease {
			return r
		}
	}
	t.Fatal("no lease")
	return limiter.Result{}
}

// TestLeaseAnswers: a leased Result counts what this process used, while all others see the
// whole block in use.
func TestLeaseAnswers(t *testing.T) {
	t.Parallel()
	s := newLessee(limiter.Config{}, memory.New())
	r := s.leased(t, hot) // after eight from the row, of a block of four
	if r.Granted != 1 || r.Level != 9 || r.Remaining != 191 || r.Burst != 200 || r.Policy != hot || r.Full || r.RetryAfter != 0 || r.ResetAfter != 1200*time.Millisecond {
		t.Errorf("got %+v", r)
	}
	other, err := s.Check(t.Context(), hot, "all", 0)
	if err != nil || other.Level != 12 {
		t.Errorf("the row has %+v, %v; want 12 units in use", other, err)
	}
	s.wait(100 * time.Millisecond)
	again := s.leased(t, hot)
	if again.Level != 10 || again.At.Sub(r.At) != 100*time.Millisecond || again.ResetAfter != 1100*time.Millisecond {
		t.Errorf("then %+v", again)
	}
	undone, err := s.Undo(t.Context(), hot, "all", again)
	if err != nil || !undone.Allowed || undone.Granted != 1 || undone.Source != limiter.SourceLease || undone.Level != 9 {
		t.Errorf("undone: %+v, %v", undone, err)
	}
	for _, foreign := range []limiter.Request{hot.Request("other", 1), limiter.PerSecond("hot2", 10).Request("all", 1)} {
		if undone, err = s.Undo(t.Context(), foreign.Policy, foreign.Key, again); err != nil || undone.Granted != 0 {
			t.Errorf("a foreign key got %+v, %v", undone, err)
		}
	}
	for _, cost := range []float64{0.5, 50} { // what a block cannot grant is decided by the row
		if r, err = s.AllowN(t.Context(), hot, "all", cost); err != nil || !r.Allowed || r.Source != limiter.SourceMemory {
			t.Errorf("cost %v: %+v, %v", cost, r, err)
		}
	}
}

// TestUnitsThatLeakWhileTheyAreLent: the row forgets what processes have not used yet, and then
// grants all it can. Both together are no more than the burst.
func TestUnitsThatLeakWhileTheyAreLent(t *testing.T) {
	t.Parallel()
	rows, all, used, lent := memory.New(), [12]*lessee{}, 0.0, 0.0
	later := func(d time.Duration) {
		for _, s := range all {
			s.at += d
			s.clock.Set(s.at.Microseconds())
		}
	}
	allow := func(s *lessee, cost float64) limiter.Result {
		r := must.OK(s.AllowN(t.Context(), hot, "all", cost))(t)
		return r
	}
	for i := range all {
		all[i] = newLessee(limiter.Config{}, rows)
		allow(all[i], 7)
	}
	later(9900 * time.Millisecond)
	for _, s := range all {
		allow(s, 1) // which makes the key hot: a block of four
	}
	later(9900 * time.Millisecond) // nothing is in use by the row now
	for _, s := range all {
		r := allow(s, 4)
		if used += r.Granted; r.Source == limiter.SourceLease {
			lent += r.Granted
		}
	}
	for allow(all[0], 1).Allowed {
		used++
	}
	if lent != 48 || used > hot.Burst {
		t.Errorf("%v units were granted at once, %v of them from leases; want at most %v, and 48", used, lent, hot.Burst)
	}
}

// TestLeaseEndsAtOnce: what ends a lease ends it at once for the process that holds it.
func TestLeaseEndsAtOnce(t *testing.T) {
	t.Parallel()
	smaller := hot
	smaller.Limit--
	for name, c := range map[string]struct {
		end  func(s *lessee) error
		then limiter.Policy
		want limiter.Result
	}{
		"block":          {func(s *lessee) error { return s.Block(t.Context(), hot, "all", time.Minute) }, hot, limiter.Result{Reason: limiter.ReasonBlocked}},
		"reset":          {func(s *lessee) error { return s.Reset(t.Context(), hot, "all") }, hot, limiter.Result{Allowed: true}},
		"another policy": {func(s *lessee) error { return nil }, smaller, limiter.Result{Allowed: true}},
		"its life": {func(s *lessee) error {
			s.at += 9990 * time.Millisecond // clocks may differ by one part in a thousand
			s.clock.Set(s.at.Microseconds())
			return nil
		}, hot, limiter.Result{Allowed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLessee(limiter.Config{}, memory.New())
			before := s.leased(t, hot)
			must.Succeed(t, c.end(s))
			r, err := s.Allow(t.Context(), c.then, "all")
			if err != nil || r.Allowed != c.want.Allowed || r.Reason != c.want.Reason || r.Source != limiter.SourceMemory {
				t.Errorf("got %+v, %v", r, err)
			}
			if name == "another policy" {
				return
			}
			if back, err := s.Undo(t.Context(), hot, "all", before); err != nil || back.Granted != 0 {
				t.Errorf("Undo gave back %+v, %v", back, err)
			}
		})
	}
}

func TestLeaseOfAWindowEndsWithIt(t *testing.T) {
	t.Parallel()
	s, p := newLessee(limiter.Config{}, memory.New()), hot
	p.Algorithm, p.Burst, p.Aligned, p.Limit = limiter.FixedWindow, 0, true, 1000
	p.Period, p.Lease = time.Minute, 0.5
	s.wait(55 * time.Second)
	s.leased(t, p)
	s.at += 4996 * time.Millisecond
	s.clock.Set(s.at.Microseconds())
	if r, err := s.Allow(t.Context(), p, "all"); err != nil || r.Source != limiter.SourceMemory {
		t.Errorf("4 ms before the window's end, by a clock that may be slow: %+v, %v", r, err)
	}
}

// TestRestOfALeaseGoesBack: at its end a lease gives back the units that it did not use. Those
// of a bucket that have leaked since do not go back a second time.
func TestRestOfALeaseGoesBack(t *testing.T) {
	t.Parallel()
	window := hot
	window.Algorithm, window.Burst, window.Limit, window.Period = limiter.FixedWindow, 0, 1000, time.Hour
	for name, end := range map[string]func(s *lessee){
		"idle":  func(s *lessee) { s.wait(0); s.wait(0) },
		"close": func(s *lessee) { _ = s.Close() },
	} {
		for _, p := range []limiter.Policy{window, hot} {
			t.Run(name+" "+string(p.Algorithm), func(t *testing.T) {
				t.Parallel()
				rows := memory.New()
				s := newLessee(limiter.Config{}, rows)
				s.leased(t, p)
				end(s)
				other := newLessee(limiter.Config{}, rows)
				if r, err := other.Check(t.Context(), p, "all", 0); err != nil || r.Level != 9 || s.Blocks() != 0 {
					t.Errorf("%+v is in use, %v, with %d blocks; 9 units were", r, err, s.Blocks())
				}
			})
		}
	}
}

func TestBlockThatComesAfterCloseGoesBack(t *testing.T) {
	t.Parallel()
	rows := memory.New()
	s, other := newLessee(limiter.Config{}, rows), newLessee(limiter.Config{DisableLeases: true}, rows)
	s.held = true
	for range 8 {
		if r, err := s.Allow(t.Context(), hot, "all"); err != nil || r.Source != limiter.SourceMemory {
			t.Fatal(r, err)
		}
	}
	s.held = false
	_ = s.Close()
	if len(s.later) != 1 {
		t.Fatalf("%d blocks are being taken, want 1", len(s.later))
	}
	s.later[0]()
	if r, err := other.Check(t.Context(), hot, "all", 0); err != nil || r.Level != 8 || s.Blocks() != 0 {
		t.Errorf("%+v is in use, %v, with %d blocks; 8 units were", r, err, s.Blocks())
	}
}

// TestRenewalBeginsNoBlock: a block of units is smaller if less is left, and none is no reason
// to block a key that no request has exceeded.
func TestRenewalBeginsNoBlock(t *testing.T) {
	t.Parallel()
	rows, p := memory.New(), hot
	p.BlockFor = time.Hour
	s, other := newLessee(limiter.Config{}, rows), newLessee(limiter.Config{}, rows)
	s.leased(t, p)
	if r, err := other.AllowN(t.Context(), p, "all", 188); err != nil || !r.Allowed || !r.Full {
		t.Fatal(r, err)
	}
	for range 3 { // the block has three left, and half of it asks for the next
		s.leased(t, p)
	}
	if r, err := s.Check(t.Context(), p, "all", 0); err != nil || !r.Allowed {
		t.Errorf("the key is blocked: %+v, %v", r, err)
	}
}

// BenchmarkAllowLeased is an allowed decision from a block.
func BenchmarkAllowLeased(b *testing.B) {
	l := limiter.NewLeasing(memory.New(), nil, limiter.Process{})
	p := limiter.Policy{Name: "leased", Algorithm: limiter.TokenBucket, Limit: 1e12, Period: time.Second, Burst: 1e13, Lease: 0.05}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if r, err := l.Allow(b.Context(), p, "all"); err != nil || !r.Allowed {
				b.Fatal(r, err)
			}
		}
	})
}

// TestLeaseAndFloor: a request with a Floor is decided by the row, not by a block in this process.
func TestLeaseAndFloor(t *testing.T) {
	t.Parallel()
	s := newLessee(limiter.Config{}, memory.New())
	s.leased(t, hot)
	r, err := s.Do(t.Context(), limiter.Request{Policy: hot, Key: "all", Cost: 1, Floor: 0.99})
	if err != nil || r.Allowed || r.Source == limiter.SourceLease {
		t.Errorf("%+v, %v", r, err)
	}
}
