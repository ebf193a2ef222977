package contest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// perRequest is the time of a request. Requests that begin together end together, so the
// next ones contend too.
const perRequest = time.Millisecond

// honest is a memory limiter. Where it would roll back it only checks.
type honest struct{ *limiter.Limiter }

func newHonest() honest {
	pause := func(context.Context, limiter.Observation) { time.Sleep(perRequest) }
	return honest{limiter.NewMemory(&limiter.Config{DisableDenyCache: true, Observe: pause})}
}

func (h honest) InTx(_ context.Context, commit bool, do func(verbs.Limiter) error) error {
	return do(rolledBackAlone{h, commit})
}

// stalling answers no request while a row is locked.
type stalling struct {
	honest
	held *sync.RWMutex
}

func (s stalling) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	s.held.RLock()
	defer s.held.RUnlock()
	return s.honest.AllowN(ctx, p, key, n)
}

func (s stalling) AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error) {
	s.held.RLock()
	defer s.held.RUnlock()
	return s.honest.AllowAll(ctx, requests...)
}

func (s stalling) Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	s.held.RLock()
	defer s.held.RUnlock()
	return s.honest.Reserve(ctx, request, ttl)
}

func (s stalling) InTx(ctx context.Context, commit bool, do func(verbs.Limiter) error) error {
	s.held.Lock()
	defer s.held.Unlock()
	return s.honest.InTx(ctx, commit, do)
}

// generous allows one denied request, on one kind of key.
type generous struct {
	honest
	kind  kind
	inTx  bool
	spent atomic.Bool
}

func (g *generous) pass(r limiter.Result, p limiter.Policy, err error) (limiter.Result, error) {
	if err == nil && !r.Allowed && strings.HasSuffix(p.Name, string(g.kind)) && g.spent.CompareAndSwap(false, true) {
		r.Allowed = true
	}
	return r, err
}

func (g *generous) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	r, err := g.honest.AllowN(ctx, p, key, n)
	if g.inTx {
		return r, err
	}
	return g.pass(r, p, err)
}

func (g *generous) InTx(ctx context.Context, commit bool, do func(verbs.Limiter) error) error {
	return g.honest.InTx(ctx, commit, func(tx verbs.Limiter) error {
		if g.inTx && commit {
			tx = generousTx{tx, g}
		}
		return do(tx)
	})
}

type generousTx struct {
	verbs.Limiter
	*generous
}

func (g generousTx) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	r, err := g.Limiter.AllowN(ctx, p, key, n)
	return g.pass(r, p, err)
}

// lossy counts every request, and loses every tenth answer.
type lossy struct {
	honest
	requests atomic.Int64
}

func (l *lossy) lost(err error) error {
	if err == nil && l.requests.Add(1)%10 == 0 {
		return errors.New("connection lost")
	}
	return err
}

func (l *lossy) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	r, err := l.honest.AllowN(ctx, p, key, n)
	return r, l.lost(err)
}

func (l *lossy) AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error) {
	r, err := l.honest.AllowAll(ctx, requests...)
	return r, l.lost(err)
}

func (l *lossy) Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	r, err := l.honest.Reserve(ctx, request, ttl)
	return r, l.lost(err)
}

func (l *lossy) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	r, err := l.honest.Settle(ctx, id, units)
	return r, l.lost(err)
}

func (l *lossy) Cancel(ctx context.Context, id string) error {
	return l.lost(l.honest.Cancel(ctx, id))
}

func wallClock(context.Context) (time.Time, error) { return time.Now(), nil }

// toMonthsEnd is from the time at which a synctest bubble begins to shortly before the end
// of its month, so that calendar windows end in a contest.
const toMonthsEnd = 31*24*time.Hour - 50*time.Millisecond

// contend runs contests with fresh clients, each longer than the one before, until enough
// returns true. Their time is that of a synctest bubble, which passes only while all workers
// wait. So they send the same number of requests on every machine.
func contend[C Client](t *testing.T, fresh func() C, a limiter.Algorithm, lasts time.Duration, enough func(C, Algorithm) bool) (seen Algorithm) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(toMonthsEnd)
		for {
			c := fresh()
			var err error
			if seen, err = New([]Client{c, c}, c, 8, a, "test", lasts).Contend(t.Context(), lasts, wallClock); err != nil {
				t.Fatal(err)
			}
			if enough(c, seen) || lasts > 10*time.Second {
				return
			}
			lasts *= 2
		}
	})
	return seen
}

// TestContestHonest: a correct limiter passes, with and without lost answers, for longer
// than a hot key's period.
func TestContestHonest(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			seen := contend(t, newHonest, a, 1200*time.Millisecond, func(_ honest, seen Algorithm) bool { return seen.Requests >= 2000 })
			if len(seen.Exceeded) > 0 || len(seen.Faults) > 0 || seen.Admitted == 0 || seen.RolledBack == 0 || float64(seen.Admitted) > seen.Allowed || seen.Asked <= seen.Admitted {
				t.Errorf("honest: %+v", seen)
			}
			if seen.PerSecond == 0 || seen.P99 == 0 || seen.Keys < 4 {
				t.Errorf("measured nothing: %+v", seen)
			}
			if seen.Plans.Admitted == 0 || float64(seen.Plans.Admitted) > seen.Plans.Allowed || seen.Held.Rows == 0 || seen.Held.Meanwhile < holdAnswers ||
				seen.Held.Admitted == 0 || float64(seen.Held.Admitted) > seen.Held.Allowed || seen.Held.Stalls != 0 {
				t.Errorf("plans and locked rows: %+v, %+v", seen.Plans, seen.Held)
			}
			if r := seen.Reserved; seen.Sets.Admitted == 0 || r != nil && (r.Settled == 0 || r.Cancelled == 0 || r.Late == 0) {
				t.Errorf("sets and reservations: %+v, %+v", seen.Sets, r)
			}
			seen = contend(t, func() *lossy { return &lossy{honest: newHonest()} }, a, 50*time.Millisecond,
				func(l *lossy, _ Algorithm) bool { return l.requests.Load() >= 10 })
			if len(seen.Exceeded) > 0 || len(seen.Faults) > 0 || seen.Unknown == 0 {
				t.Errorf("lossy: %+v", seen)
			}
		})
	}
}

// TestContestFindsGenerous: one request too many on a cold key is found for every
// algorithm, with and without a transaction.
func TestContestFindsGenerous(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		for _, inTx := range []bool{false, true} {
			// A key that is left for the next one is full, but for the units of
			// requests above 1 that it denied: so full to the last unit.
			seen := contend(t, func() *generous { return &generous{honest: newHonest(), kind: coldKind, inTx: inTx} }, a, 100*time.Millisecond,
				func(g *generous, _ Algorithm) bool { return g.spent.Load() })
			if len(seen.Exceeded) != 1 || len(seen.Faults) != 0 || seen.Exceeded[0].Admitted <= coldLimit || seen.Exceeded[0].Allowed != coldLimit {
				t.Errorf("%s, in a transaction %v: %+v", a, inTx, seen)
			}
		}
	}
}

// TestContestFindsStalling: a limiter that answers no other key while a row is locked is
// found. A contest without workers to spare reports no stall.
func TestContestFindsStalling(t *testing.T) {
	t.Parallel()
	s := stalling{newHonest(), new(sync.RWMutex)}
	c := New([]Client{s}, s, 4, limiter.GCRA, "test", time.Millisecond)
	c.holding.most = 10 * time.Millisecond
	seen, err := c.Contend(t.Context(), time.Millisecond, wallClock)
	if err != nil || seen.Held.Stalls == 0 || seen.Held.Meanwhile != 0 {
		t.Errorf("%v: %+v", err, seen.Held)
	}
	c = New([]Client{newHonest()}, newHonest(), 1, limiter.GCRA, "test", time.Millisecond)
	seen, err = c.Contend(t.Context(), time.Millisecond, wallClock)
	if err != nil || seen.Held.Stalls != 0 || seen.Held.Rows == 0 {
		t.Errorf("a lone worker: %v: %+v", err, seen.Held)
	}
}

// failing fails every request.
type failing struct {
	honest
	err error
}

func (f failing) InTx(context.Context, bool, func(verbs.Limiter) error) error { return f.err }

func (f failing) AllowN(context.Context, limiter.Policy, string, float64) (limiter.Result, error) {
	return limiter.Result{}, f.err
}

func (f failing) AllowAll(context.Context, ...limiter.Request) (limiter.Results, error) {
	return limiter.Results{}, f.err
}

func (f failing) Reserve(context.Context, limiter.Request, time.Duration) (limiter.Reservation, error) {
	return limiter.Reservation{}, f.err
}

// TestContestGivesUp: if the database fails the workers, or the one that holds rows, the
// contest returns its error.
func TestContestGivesUp(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{limiter.ErrUnavailable, limiter.ErrNotMigrated} {
		for _, pair := range [][2]Client{{failing{newHonest(), cause}, newHonest()}, {newHonest(), failing{newHonest(), cause}}} {
			c := New(pair[:1], pair[1], 4, limiter.GCRA, "test", time.Hour)
			if _, err := c.Contend(t.Context(), time.Hour, wallClock); !errors.Is(err, cause) {
				t.Errorf("%v: got %v", cause, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := New([]Client{failing{newHonest(), context.Canceled}}, failing{newHonest(), context.Canceled}, 4, limiter.GCRA, "test", time.Hour)
	if _, err := c.Contend(ctx, time.Hour, wallClock); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	c = New([]Client{newHonest()}, newHonest(), 4, limiter.GCRA, "test", time.Hour)
	noClock := func(context.Context) (time.Time, error) { return time.Time{}, limiter.ErrUnavailable }
	if _, err := c.Contend(t.Context(), time.Hour, noClock); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("no clock: got %v", err)
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

// TestWindowsExceeded: a window that admitted more than its limit is a fault, which hides
// the wrong end of the answers that led to it.
func TestWindowsExceeded(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 30, Calendar: limiter.Hour}
	at := time.Date(2026, 1, 2, 3, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		units int64
		ends  time.Duration
		want  string
	}{
		{30, 30 * time.Minute, ""},
		{30, time.Minute, "ends its window at"},
		{31, 30 * time.Minute, "the window that begins at"},
		{31, time.Minute, "the window that begins at"},
	} {
		books := &tally{plans: []limiter.Policy{p}}
		books.inWindow(p, limiter.Result{At: at, Level: 1, ResetAfter: c.ends}, 1, true)
		books.inWindow(p, limiter.Result{At: at, Level: 30, ResetAfter: c.ends}, c.units-1, true)
		books.inWindow(p, limiter.Result{At: at, Level: 30, ResetAfter: c.ends}, 1, false)
		books.checkWindows()
		if (c.want == "") != (books.fault == "") || !strings.Contains(books.fault, c.want) {
			t.Errorf("%d units, end after %v: %q, want %q", c.units, c.ends, books.fault, c.want)
		}
	}
}
