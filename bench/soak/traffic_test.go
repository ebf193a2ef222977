package main

import (
	"context"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	some := full
	some.Keys, some.Rate = 5, 70
	fast := quick
	fast.Rate = 9000
	for _, c := range []struct {
		args string
		want plan
	}{{"", full}, {"-quick", quick}, {"-keys 5 -rate 70", some}, {"-rate 9000 -quick", fast}} {
		got, err := parsePlan(strings.Fields(c.args), io.Discard)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v; want %+v", c.args, got, err, c.want)
		}
	}
	for _, args := range []string{"-keys 0", "-length 1m59s", "-keys 2000000", "more"} {
		if _, err := parsePlan(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

// TestWarmUpFillsTheTables: before the comparison begins, rows of all ages are there: those
// of two generations, held for as long as a policy holds them and then until the janitor's
// next look.
func TestWarmUpFillsTheTables(t *testing.T) {
	t.Parallel()
	for _, p := range []plan{full, quick} {
		var hold time.Duration
		for _, policy := range policies {
			hold = max(hold, 2*policy.Period, time.Hour)
		}
		use := time.Duration(2*p.Generation) * time.Second / time.Duration(p.arrivals(time.Second))
		if life := use + (hold+time.Hour)/time.Duration(p.Speed) + p.Sweep; life > p.Warm {
			t.Errorf("a row may be there for %v, the warm-up lasts %v", life, p.Warm)
		}
		if p.Length%p.Every != 0 || p.Part%p.Every != 0 || p.Generation&(p.Generation-1) != 0 {
			t.Errorf("%+v: lengths are not whole readings, or a generation is no power of two", p)
		}
	}
}

func TestPopulation(t *testing.T) {
	t.Parallel()
	p := newPopulation(64, 200)
	zipf := p.weights(rand.New(rand.NewPCG(1, 2)))
	if n, ok := p.draw(zipf); ok {
		t.Errorf("before any key arrived, %d was drawn", n)
	}
	for n := range 150 {
		if got, ok := p.arrive(150); !ok || got != n {
			t.Fatalf("key %d arrived as %d, %v", n, got, ok)
		}
	}
	if n, ok := p.arrive(150); ok {
		t.Errorf("%d arrived too early", n)
	}
	drawn := map[int]int{}
	for range 20_000 {
		n, ok := p.draw(zipf)
		if !ok || n < 64 || n >= 128 {
			t.Fatalf("%d was drawn, %v; want one of the generation from 64 to 127", n, ok)
		}
		drawn[n]++
	}
	if len(drawn) != 64 || drawn[64] < 4000 {
		t.Errorf("%d of 64 keys were drawn, the most popular one %d times", len(drawn), drawn[64])
	}
	for range 200 {
		p.arrive(1000)
	}
	if got := p.arrived.Load(); got != 200 {
		t.Errorf("%d keys arrived, there is room for 200", got)
	}

	names := map[string]bool{}
	for n := range 10_000 {
		name := keyName(n)
		if back, ok := keyNumber(name); !ok || back != n || names[name] {
			t.Fatalf("key %d is %q, read as %d, %v", n, name, back, ok)
		}
		names[name] = true
	}
	for _, other := range []string{"watched-1", "", "-", "x-y", "0--1"} {
		if n, ok := keyNumber(other); ok {
			t.Errorf("%q is key %d", other, n)
		}
	}
	early := time.UnixMicro(5)
	p.note(3, early.Add(time.Second))
	p.note(3, early)
	if got := p.emptyBy[3].Load(); got != 1_000_005 {
		t.Errorf("noted %d µs", got)
	}
}

// TestMixture runs each call of the mixture for keys of all policies, but those in a
// transaction, which need a database.
func TestMixture(t *testing.T) {
	t.Parallel()
	sum := 0
	for _, m := range mixture {
		sum += m.percent
	}
	if sum != 100 {
		t.Errorf("the shares add up to %d", sum)
	}
	c := &caller{
		traffic: &traffic{plan: quick, clock: clock{time.Now(), 1200}, keys: newPopulation(64, 128)},
		random:  rand.New(rand.NewPCG(1, 2)), calls: newHistogram(),
	}
	c.limiter = limiter.NewMemory(&limiter.Config{Now: c.clock.Now})
	c.zipf = c.keys.weights(c.random)
	for range 128 {
		c.keys.arrive(128)
	}
	calls := 0
	for _, m := range mixture {
		if reflect.ValueOf(m.call).Pointer() == reflect.ValueOf((*caller).transaction).Pointer() {
			continue
		}
		for n := range 64 {
			if err := m.call(c, t.Context(), n); err != nil {
				t.Fatalf("key %d of %s: %v", n, policyOf(n).Name, err)
			}
			calls++
		}
	}
	if got := c.calls.TotalCount(); got < int64(calls) {
		t.Errorf("%d of %d calls were timed", got, calls)
	}
	for n := range 64 {
		if c.keys.emptyBy[n].Load() <= c.clock.start.UnixMicro() {
			t.Errorf("key %d of %s: its row's end was not noted", n, policyOf(n).Name)
		}
	}
}

// TestWatched: what a limiter admits is within the bound, one unit more is not.
func TestWatched(t *testing.T) {
	t.Parallel()
	all := newWatched(1)
	if len(all) != len(limiter.Algorithms()) {
		t.Errorf("%d keys are watched, want one of each algorithm", len(all))
	}
	now := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	for _, w := range all {
		for range 200 {
			now = now.Add(w.policy.Period / 100)
			r, err := l.Allow(context.Background(), w.policy, w.key)
			if err != nil {
				t.Fatal(err)
			}
			w.record(r)
		}
		w.record(limiter.Result{Allowed: true, Replayed: true, Granted: 1e6, At: now})
		if len(w.admitted) == 0 || w.denied == 0 {
			t.Errorf("%s: %d admitted, %d denied", w.policy.Name, len(w.admitted), w.denied)
		}
	}
	if b := checkWatched(all); len(b.Exceeded) > 0 {
		t.Errorf("within the limits: %+v", b)
	}
	for _, w := range all {
		last := w.admitted[len(w.admitted)/2]
		w.record(limiter.Result{Allowed: true, Granted: w.policy.Limit, At: time.UnixMicro(last.At)})
	}
	if b := checkWatched(all); len(b.Exceeded) != len(all) || !strings.Contains(b.Exceeded[0], "key watched-0 of policy leaky: at ") {
		t.Errorf("above the limits: %+v", b)
	}
}
