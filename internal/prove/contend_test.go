package prove

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// honest asks a memory limiter, which cannot roll back: there it only looks. What
// one plan admitted counts against the other by honest's own arithmetic.
type honest struct {
	l     *limiter.Limiter
	plans *sync.Mutex
}

func newHonest() honest { return honest{limiter.NewMemory(nil), new(sync.Mutex)} }

func (h honest) ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	return h.as(ctx, p, key, n, h.l.AllowN)
}

func (h honest) askInTx(ctx context.Context, p limiter.Policy, key string, n float64, commit bool, before func()) (limiter.Result, error) {
	defer before()
	if commit {
		return h.as(ctx, p, key, n, h.l.AllowN)
	}
	return h.as(ctx, p, key, n, h.l.Check)
}

func (h honest) as(ctx context.Context, p limiter.Policy, key string, n float64, do func(context.Context, limiter.Policy, string, float64) (limiter.Result, error)) (limiter.Result, error) {
	if !strings.HasSuffix(p.Name, string(plansKind)) {
		return do(ctx, p, key, n)
	}
	h.plans.Lock()
	defer h.plans.Unlock()
	large := p
	large.Limit = coldLimit
	seen, err := h.l.Check(ctx, large, key, 0)
	if err != nil || seen.Level+n > p.Limit {
		return limiter.Result{}, err
	}
	return do(ctx, large, key, n)
}

// forgetful forgets what a key has used above the limit that is asked under.
type forgetful struct{ honest }

func (f forgetful) ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	large := p
	large.Limit = max(p.Limit, coldLimit)
	seen, err := f.l.Check(ctx, large, key, 0)
	if err == nil && p.Limit == smallPlan && seen.Level > p.Limit {
		if err = f.l.Reset(ctx, large, key); err == nil {
			_, err = f.l.Fill(ctx, large, key, p.Limit)
		}
	}
	if err != nil {
		return seen, err
	}
	return f.honest.ask(ctx, p, key, n)
}

// stalling answers nobody while a row is held.
type stalling struct {
	honest
	held *sync.RWMutex
}

func (s stalling) ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	s.held.RLock()
	defer s.held.RUnlock()
	return s.honest.ask(ctx, p, key, n)
}

func (s stalling) askInTx(ctx context.Context, p limiter.Policy, key string, n float64, commit bool, before func()) (limiter.Result, error) {
	if strings.HasSuffix(p.Name, string(heldKind)) {
		s.held.Lock()
		defer s.held.Unlock()
	} else {
		s.held.RLock()
		defer s.held.RUnlock()
	}
	return s.honest.askInTx(ctx, p, key, n, commit, before)
}

// generous lets one denied ask pass, on one kind of key.
type generous struct {
	honest
	kind  string
	inTx  bool
	spent atomic.Bool
}

func (g *generous) pass(r limiter.Result, p limiter.Policy, err error) (limiter.Result, error) {
	if err == nil && !r.Allowed && strings.HasSuffix(p.Name, g.kind) && g.spent.CompareAndSwap(false, true) {
		r.Allowed = true
	}
	return r, err
}

func (g *generous) ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	r, err := g.honest.ask(ctx, p, key, n)
	if g.inTx {
		return r, err
	}
	return g.pass(r, p, err)
}

func (g *generous) askInTx(ctx context.Context, p limiter.Policy, key string, n float64, commit bool, before func()) (limiter.Result, error) {
	r, err := g.honest.askInTx(ctx, p, key, n, commit, before)
	if !g.inTx || !commit {
		return r, err
	}
	return g.pass(r, p, err)
}

// racy reads, and writes what it read: the mistake that this is all about.
type racy struct{ honest }

func (r racy) ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	seen, err := r.l.Check(ctx, p, key, n)
	if err != nil || !seen.Allowed {
		return seen, err
	}
	runtime.Gosched() // another reads meanwhile
	_, err = r.l.Fill(ctx, p, key, n)
	return seen, err
}

// lossy counts, and loses every tenth answer.
type lossy struct {
	honest
	asks atomic.Int64
}

func (l *lossy) ask(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	r, err := l.honest.ask(ctx, p, key, n)
	if err == nil && l.asks.Add(1)%10 == 0 {
		return limiter.Result{}, errors.New("connection lost")
	}
	return r, err
}

func wallClock(context.Context) (time.Time, error) { return time.Now(), nil }

// contend contends for a while, and then on fresh clients for longer and longer,
// until it was enough to tell anything: a slow machine asks little in a while.
func contend[C client](t *testing.T, fresh func() C, a limiter.Algorithm, lasts time.Duration, enough func(C, Algorithm) bool) Algorithm {
	t.Helper()
	for {
		c := fresh()
		seen, err := newContest([]client{c, c}, c, 8, a, "test", lasts).contend(t.Context(), lasts, wallClock)
		if err != nil {
			t.Fatal(err)
		}
		if enough(c, seen) || lasts > 10*time.Second {
			return seen
		}
		lasts *= 2
	}
}

// TestHonest: a limiter that keeps to its definition passes, answers lost or
// not, for longer than a hot key's period.
func TestHonest(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			seen := contend(t, newHonest, a, 1200*time.Millisecond, func(_ honest, seen Algorithm) bool { return seen.Asks >= 2000 })
			if len(seen.Exceeded) > 0 || seen.Admitted == 0 || seen.RolledBack == 0 || float64(seen.Admitted) > seen.Allowed || seen.Asked <= seen.Admitted {
				t.Errorf("honest: %+v", seen)
			}
			if seen.PerSecond == 0 || seen.P99 == 0 || seen.Keys < coldKeys+hotKeys {
				t.Errorf("measured nothing: %+v", seen)
			}
			if seen.Plans.Admitted == 0 || float64(seen.Plans.Admitted) > seen.Plans.Allowed || seen.Held.Rows == 0 || seen.Held.Meanwhile < holdAnswers ||
				seen.Held.Admitted == 0 || float64(seen.Held.Admitted) > seen.Held.Allowed || seen.Held.Stalls != 0 {
				t.Errorf("plans and held rows: %+v, %+v", seen.Plans, seen.Held)
			}
			seen = contend(t, func() *lossy { return &lossy{honest: newHonest()} }, a, 50*time.Millisecond,
				func(l *lossy, _ Algorithm) bool { return l.asks.Load() >= 10 })
			if len(seen.Exceeded) > 0 || seen.Unknown == 0 {
				t.Errorf("lossy: %+v", seen)
			}
		})
	}
}

// TestFindsGenerous: one ask too many, on a cold key, alone or in a
// transaction, is found for every algorithm.
func TestFindsGenerous(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		for _, inTx := range []bool{false, true} {
			// A key that is left for the next one is full, but for the units of
			// asks above 1 that it denied: so full to the last unit.
			seen := contend(t, func() *generous { return &generous{honest: newHonest(), kind: "cold", inTx: inTx} }, a, 100*time.Millisecond,
				func(g *generous, _ Algorithm) bool { return g.spent.Load() })
			if len(seen.Exceeded) != 1 || seen.Exceeded[0].Admitted <= coldLimit || seen.Exceeded[0].Allowed != coldLimit {
				t.Errorf("%s, in a transaction %v: %+v", a, inTx, seen)
			}
		}
	}
}

// TestFindsRacy: so is a limiter that reads before it locks.
func TestFindsRacy(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		seen := contend(t, func() racy { return racy{newHonest()} }, a, 200*time.Millisecond,
			func(_ racy, seen Algorithm) bool { return len(seen.Exceeded) > 0 })
		if len(seen.Exceeded) == 0 {
			t.Errorf("%s: %+v", a, seen)
		}
	}
}

// TestFindsForgetful: so is one that forgets under one plan what was spent under
// another.
func TestFindsForgetful(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		seen := contend(t, func() forgetful { return forgetful{newHonest()} }, a, 200*time.Millisecond,
			func(_ forgetful, seen Algorithm) bool { return len(seen.Exceeded) > 0 })
		if len(seen.Exceeded) == 0 || float64(seen.Plans.Admitted) <= seen.Plans.Allowed {
			t.Fatalf("%s: %+v", a, seen)
		}
		for _, e := range seen.Exceeded {
			if !strings.HasPrefix(e.Key, "plans-") || e.Allowed != coldLimit || e.Policy.Limit != coldLimit {
				t.Errorf("%s: %+v", a, e)
			}
		}
	}
}

// TestFindsStalling: a limiter that answers for no other key while a row is held
// stalls, and one without workers to spare does not.
func TestFindsStalling(t *testing.T) {
	t.Parallel()
	s := stalling{newHonest(), new(sync.RWMutex)}
	c := newContest([]client{s}, s, 4, limiter.GCRA, "test", time.Millisecond)
	c.holding.most = 10 * time.Millisecond
	seen, err := c.contend(t.Context(), time.Millisecond, wallClock)
	if err != nil || seen.Held.Stalls == 0 || seen.Held.Meanwhile != 0 {
		t.Errorf("%v: %+v", err, seen.Held)
	}
	c = newContest([]client{newHonest()}, newHonest(), 1, limiter.GCRA, "test", time.Millisecond)
	seen, err = c.contend(t.Context(), time.Millisecond, wallClock)
	if err != nil || seen.Held.Stalls != 0 || seen.Held.Rows == 0 {
		t.Errorf("a lone worker: %v: %+v", err, seen.Held)
	}
}

type failing struct{ err error }

func (f failing) ask(context.Context, limiter.Policy, string, float64) (limiter.Result, error) {
	return limiter.Result{}, f.err
}
func (f failing) askInTx(context.Context, limiter.Policy, string, float64, bool, func()) (limiter.Result, error) {
	return limiter.Result{}, f.err
}

// TestGivesUp: a database in trouble ends a proof with its error.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{limiter.ErrUnavailable, limiter.ErrNotMigrated} {
		c := newContest([]client{failing{cause}}, failing{cause}, 4, limiter.GCRA, "test", time.Hour)
		if _, err := c.contend(t.Context(), time.Hour, wallClock); !errors.Is(err, cause) {
			t.Errorf("%v: got %v", cause, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := newContest([]client{failing{context.Canceled}}, failing{context.Canceled}, 4, limiter.GCRA, "test", time.Hour)
	if _, err := c.contend(ctx, time.Hour, wallClock); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	c = newContest([]client{newHonest()}, newHonest(), 4, limiter.GCRA, "test", time.Hour)
	noClock := func(context.Context) (time.Time, error) { return time.Time{}, limiter.ErrUnavailable }
	if _, err := c.contend(t.Context(), time.Hour, noClock); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("no clock: got %v", err)
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		algorithm limiter.Algorithm
		burst     float64
		elapsed   time.Duration
		want      float64
	}{
		{limiter.TokenBucket, 0, 0, 10},
		{limiter.TokenBucket, 30, 90 * time.Second, 45},
		{limiter.LeakyBucket, 0, 2 * time.Minute, 30},
		{limiter.LeakyBucketQueue, 20, time.Minute, 30},
		{limiter.GCRA, 0, time.Minute, 20},
		{limiter.FixedWindow, 0, 59 * time.Second, 10},
		{limiter.FixedWindow, 0, time.Minute, 20},
		{limiter.SlidingWindowLog, 0, 59 * time.Second, 10},
		{limiter.SlidingWindowLog, 0, 2 * time.Minute, 30},
		{limiter.SlidingWindowCounter, 0, 0, 10},
		{limiter.SlidingWindowCounter, 0, 30 * time.Second, 15},
		{limiter.SlidingWindowCounter, 0, 90 * time.Second, 30},
	} {
		p := limiter.Policy{Name: "p", Algorithm: c.algorithm, Limit: 10, Period: time.Minute, Burst: c.burst}
		if got := allowed(p, c.elapsed); got != c.want {
			t.Errorf("%s, burst %v, after %v: got %v, want %v", c.algorithm, c.burst, c.elapsed, got, c.want)
		}
	}
	small := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute}
	large := small
	large.Limit = 30
	tall := small
	tall.Burst = 100
	for _, c := range []struct {
		plans []limiter.Policy
		want  float64
	}{
		{nil, 0},
		{[]limiter.Policy{small}, 20},
		{[]limiter.Policy{small, large}, 60},
		{[]limiter.Policy{large, small}, 60},
		{[]limiter.Policy{small, large, tall}, 110},
	} {
		if got := allowedOf(c.plans, time.Minute); got != c.want {
			t.Errorf("%v: got %v, want %v", c.plans, got, c.want)
		}
	}
	if exceeds(30, 30) || exceeds(30, 30-1e-9) || !exceeds(31, 30) {
		t.Error("exceeds")
	}
}

func TestP99(t *testing.T) {
	t.Parallel()
	all := []time.Duration{}
	if got := p99(all); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := 200; i > 0; i-- {
		all = append(all, time.Duration(i))
	}
	if got := p99(all); got != 198 {
		t.Errorf("of 1 to 200: %v", got)
	}
	if got := p99(all[:1]); got != 1 {
		t.Errorf("of one: %v", got)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"For is 0s":        {Workers: 1},
		"For is 25h0m0s":   {For: 25 * time.Hour, Workers: 1},
		"Workers is 0":     {For: time.Second},
		"Workers is 1001":  {For: time.Second, Workers: 1001},
		"Workers is -1: t": {For: time.Second, Workers: -1},
	} {
		if err := c.Validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q in it", c, err, want)
		}
	}
	if err := (Config{For: 7 * time.Millisecond, Workers: 1}).Validate(); err != nil {
		t.Error(err)
	}
}
