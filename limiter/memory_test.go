package limiter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store/memory"
)

func manualClock() (now func() time.Time, advance func(time.Duration)) {
	var ns atomic.Int64
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return func() time.Time { return base.Add(time.Duration(ns.Load())) }, func(d time.Duration) { ns.Add(int64(d)) }
}

// TestMemoryForgetsIdleKeys: a million keys with one request each are forgotten; a
// blocked or used key is not.
func TestMemoryForgetsIdleKeys(t *testing.T) {
	now, advance := manualClock()
	m := memory.New()
	l := newInMemory(m, &Config{Now: now})
	ctx := context.Background()
	for _, algorithm := range Algorithms() {
		p := Policy{Name: "p", Algorithm: algorithm, Limit: 10, Period: time.Second}
		long := Policy{Name: "long", Algorithm: algorithm, Limit: 10, Period: 1000 * time.Hour}
		must.Succeed(t, l.Block(ctx, p, "blocked", 1000*time.Hour))
		must.OK(l.AllowN(ctx, long, "used", 10))(t)
		for i := range 30_000 {
			must.OK(l.Allow(ctx, p, fmt.Sprint(i)))(t)
			advance(time.Millisecond)
		}
		if r, _ := l.Check(ctx, p, "blocked", 0); r.Reason != ReasonBlocked {
			t.Errorf("%s: the block was forgotten: %+v", algorithm, r)
		}
		if r, _ := l.Check(ctx, long, "used", 0); r.Level < 9 {
			t.Errorf("%s: the units in use were forgotten: %+v", algorithm, r)
		}
	}
	// 2,000 keys are in use within two seconds. Each of the 64 shards sweeps when it has
	// doubled, from 64 keys on.
	if total := m.Len(); total > 4*64*64 {
		t.Errorf("%d keys are kept", total)
	}
}

// TestMemoryHasNoTransactions: methods that could not be rolled back are refused, with the
// package that has transactions for tests.
func TestMemoryHasNoTransactions(t *testing.T) {
	l := NewMemory(nil)
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 1, Period: time.Second}
	for _, tx := range []*Tx{l.InTx(nil), l.InTx(&fakeTx{}), l.InSQLTx(nil)} {
		for _, v := range verbCalls {
			if err := v.call(t.Context(), tx.engine, p); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "pglimittest") {
				t.Errorf("%s: %v", v.name, err)
			}
		}
	}
}

// TestIdleIsEmpty: at the time when a key is forgotten it has no units in use, and the
// janitor looks at a new row no earlier.
func TestIdleIsEmpty(t *testing.T) {
	for _, a := range Algorithms() {
		for _, limit := range []float64{1e-9, 0.3, 7, 1e6, 1 << 53} {
			for _, period := range []time.Duration{time.Microsecond, time.Second, 31 * 24 * time.Hour} {
				p := Policy{Name: "p", Algorithm: a, Limit: limit, Period: period}
				if a == LeakyBucket {
					p.Tick = 3 * period
				}
				must.Succeed(t, p.Validate())
				r := must.OK(newRules(&p))(t)
				s := algorithm.New(algorithm.Name(a).Family(), 0)
				s.Advance(&r, 0, 0)
				s.Put(0, r.Capacity)
				idle := s.IdleAt(&r)
				if at := s.Seen(&r, 0, 0, 0, 0).EmptyAt(&r, 0); at > idle && idle < algorithm.MaxLifetime {
					t.Errorf("%+v: idle after %d µs, but not empty until %d", p, idle, at)
				}
				if used := s.Used(&r, idle, idle); used != 0 && idle < algorithm.MaxLifetime {
					t.Errorf("%+v: idle with %v in use", p, used)
				}
				if idle > r.Lifetime {
					t.Errorf("%+v: first checked after %d µs, but idle after %d", p, r.Lifetime, idle)
				}
			}
		}
	}
}

// TestUsageOfABlockedKey: Usage.Result is what Check at cost 0 returns.
func TestUsageOfABlockedKey(t *testing.T) {
	now, _ := manualClock()
	l := NewMemory(&Config{Now: now})
	for _, algorithm := range Algorithms() {
		p := Policy{Name: "p", Algorithm: algorithm, Limit: 10, Period: time.Second}
		must.Succeed(t, l.Block(t.Context(), p, "k", time.Minute))
		want := must.OK(l.Check(t.Context(), p, "k", 0))(t)
		if got, err := l.Usage(t.Context(), p, "k"); err != nil || got.Result != want || want.Reason != ReasonBlocked {
			t.Errorf("%s: got %+v, %v, want %+v", algorithm, got.Result, err, want)
		}
	}
}

// TestAdmissionsOfDoLastForIdempotencyTTL: they do so also after a Reserve of a longer lifetime.
func TestAdmissionsOfDoLastForIdempotencyTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewMemory(&Config{IdempotencyTTL: time.Minute})
		p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 10, Period: time.Hour}
		request := p.Request("k", 1)
		request.IdempotencyKey = "order 1"
		for range 20 { // a pool of calls may not return the Reserve's at once
			must.OK(l.Reserve(t.Context(), p.Request("other", 1e-3), 24*time.Hour))(t)
			if r, err := l.Do(t.Context(), request); err != nil || r.Replayed {
				t.Fatalf("%+v, %v", r, err)
			}
			time.Sleep(time.Minute)
			must.Succeed(t, l.Reset(t.Context(), p, "k"))
		}
	})
}
