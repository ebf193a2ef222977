package prove

import (
	"context"
	"errors"
	"strings"
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

// generous allows one denied request for a cold key.
type generous struct {
	honest
	inTx  bool
	spent atomic.Bool
}

func (g *generous) pass(r limiter.Result, p limiter.Policy, err error) (limiter.Result, error) {
	if err == nil && !r.Allowed && strings.HasSuffix(p.Name, string(Cold)) && g.spent.CompareAndSwap(false, true) {
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

func wallClock(context.Context) (time.Time, error) { return time.Now(), nil }

// toMonthsEnd is from the time at which a synctest bubble begins to shortly before the end
// of its month, so that calendar windows end in a contest.
const toMonthsEnd = 31*24*time.Hour - 50*time.Millisecond

// contend runs contests with fresh clients, each longer than the one before, until enough
// returns true. Their time is that of a synctest bubble, which passes only while all workers
// wait. So they send the same number of requests on every machine.
func contend[C client](t *testing.T, fresh func() C, a limiter.Algorithm, lasts time.Duration, enough func(C, Algorithm) bool) (seen Algorithm) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(toMonthsEnd)
		for {
			c := fresh()
			var err error
			if seen, err = newContest([]client{c, c}, 8, a, "test", lasts).contend(t.Context(), lasts, wallClock); err != nil {
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
			if len(seen.Exceeded) > 0 || len(seen.Faults) > 0 || seen.Admitted == 0 || seen.RolledBack == 0 || seen.Admitted > seen.Allowed || seen.Asked <= seen.Admitted {
				t.Errorf("honest: %+v", seen)
			}
			if seen.PerSecond == 0 || seen.P99 == 0 || seen.Keys < 4 {
				t.Errorf("measured nothing: %+v", seen)
			}
			for _, part := range seen.Kinds {
				if part.Admitted == 0 || part.Admitted > part.Allowed {
					t.Errorf("%+v", part)
				}
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
			seen := contend(t, func() *generous { return &generous{honest: newHonest(), inTx: inTx} }, a, 100*time.Millisecond,
				func(g *generous, _ Algorithm) bool { return g.spent.Load() })
			if len(seen.Exceeded) != 1 || len(seen.Faults) != 0 || seen.Exceeded[0].Admitted <= coldLimit || seen.Exceeded[0].Allowed != coldLimit {
				t.Errorf("%s, in a transaction %v: %+v", a, inTx, seen)
			}
		}
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

// TestContestGivesUp: if the database fails the workers, the contest returns its error.
func TestContestGivesUp(t *testing.T) {
	t.Parallel()
	begin := func(ctx context.Context, c client, clock func(context.Context) (time.Time, error)) error {
		_, err := newContest([]client{c}, 4, limiter.GCRA, "test", time.Hour).contend(ctx, time.Hour, clock)
		return err
	}
	for _, cause := range []error{limiter.ErrUnavailable, limiter.ErrNotMigrated} {
		if err := begin(t.Context(), failing{newHonest(), cause}, wallClock); !errors.Is(err, cause) {
			t.Errorf("%v: got %v", cause, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := begin(ctx, failing{newHonest(), context.Canceled}, wallClock); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	noClock := func(context.Context) (time.Time, error) { return time.Time{}, limiter.ErrUnavailable }
	if err := begin(t.Context(), newHonest(), noClock); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("no clock: got %v", err)
	}
}
