package main

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// bursts is a policy that allows that many requests of a key.
func bursts(n float64) limiter.Policy {
	return limiter.Policy{Name: "load", Algorithm: limiter.TokenBucket, Limit: n, Period: time.Hour}
}

// counted is a source of one key that calls f once it was used n times.
type counted struct {
	asked atomic.Int64
	n     int64
	f     func()
}

func (c *counted) keys(int) func() string {
	return func() string {
		if c.asked.Add(1) == c.n {
			c.f()
		}
		return "one"
	}
}

func TestLoadCounts(t *testing.T) {
	t.Parallel()
	enough := make(chan struct{})
	source := counted{n: 1000, f: func() { close(enough) }}
	r := load{limiter: limiter.NewMemory(nil), policy: bursts(10), callers: 3, keys: source.keys}.start(t.Context())
	<-enough
	early := r.collect()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	late := r.collect()
	if early.decisions() < 990 || early.duration <= 0 || late.duration <= 0 {
		t.Errorf("%d decisions in %v, then in %v; want about 1,000 first", early.decisions(), early.duration, late.duration)
	}
	sum := newTally()
	sum.add(early)
	sum.add(late)
	if n := source.asked.Load(); sum.decisions() != n || sum.denied != n-10 || sum.duration != early.duration+late.duration {
		t.Errorf("%d decisions, %d denied in %v; want %d, all but 10 denied, in %v and %v",
			sum.decisions(), sum.denied, sum.duration, n, early.duration, late.duration)
	}
	if p50, p99 := sum.quantile(50), sum.quantile(99); p50 <= 0 || p99 < p50 {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
}

// TestLoadEndsWithItsFirstError: long before its time, and with the original error.
func TestLoadEndsWithItsFirstError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	closing, stopped := limiter.NewMemory(nil), errors.New("stopped")
	for _, c := range []struct {
		name string
		load load
		ctx  context.Context
		want string
	}{
		{"a call fails", load{limiter: closing, policy: bursts(1e6), callers: 2, keys: (&counted{n: 100, f: func() { closing.Close() }}).keys},
			t.Context(), limiter.ErrClosed.Error()},
		{"a denial that must not be", load{limiter: limiter.NewMemory(nil), policy: bursts(50), callers: 2, keys: new(counted).keys, mustAllow: true},
			t.Context(), "key one was denied"},
		{"the context ends", load{limiter: limiter.NewMemory(nil), policy: bursts(1e6), callers: 2, keys: (&counted{n: 100, f: func() { cancel(stopped) }}).keys},
			ctx, stopped.Error()},
	} {
		if _, err := c.load.run(c.ctx, 24*time.Hour); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	ordered := 0
	source := fresh()
	a, b := source(0), source(1)
	for last := ""; len(seen) < 100_000; {
		for _, next := range []func() string{a, b} {
			key := next()
			if seen[key] {
				t.Fatalf("%s was given before", key)
			}
			seen[key] = true
			if key > last {
				ordered++
			}
			last = key
		}
	}
	if ordered < 40_000 || ordered > 60_000 {
		t.Errorf("%d of 100,000 new keys come after the one before, want about half", ordered)
	}

	hits := map[string]int{}
	draw := evenly(10, 1)(0)
	for range 10_000 {
		hits[draw()]++
	}
	for i := range int64(10) {
		if n := hits[rowKey(i)]; n < 800 || n > 1200 || len(hits) != 10 {
			t.Errorf("row %d of 10 was drawn %d times of 10,000; %d keys in all", i, n, len(hits))
		}
	}

	clear(hits)
	draw = zipf(1000, zipfS, 1)(0)
	for range 10_000 {
		hits[draw()]++
	}
	// The weights 1, 2^-1.1 and so on of 1,000 keys sum up to 5.57.
	if n := hits[scattered(0)]; n < 1600 || n > 2000 {
		t.Errorf("the most popular key was drawn %d times of 10,000, want about 1,795", n)
	}
}

func TestFillStatement(t *testing.T) {
	t.Parallel()
	got, err := fillStatement([]string{"level", "updated_at_us", "expires_at_us", "newcomer", "key"})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"INSERT INTO pglimit_token_bucket (level, updated_at_us, expires_at_us, newcomer, key)", "SELECT s.level, s.updated_at_us - ", ", s.newcomer, 'user-' ||",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is missing in %s", part, got)
		}
	}
	if _, err := fillStatement([]string{"key", "updated_at_us"}); err == nil || !strings.Contains(err.Error(), "expires_at_us") {
		t.Errorf("without a column for the expiry: %v", err)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	some := full
	some.Rows, some.Out = rowCounts{5, 70}, ""
	fast := quick
	fast.Rounds = 9
	for _, c := range []struct {
		args string
		want plan
	}{{"", full}, {"-quick", quick}, {"-rows 5,70 -out=", some}, {"-rounds 9 -quick=true", fast}} {
		got, err := parsePlan(strings.Fields(c.args), io.Discard)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v; want %+v", c.args, got, err, c.want)
		}
	}
	for _, args := range []string{"-rows 5", "-rows 5,5", "-rows 0,5", "-rows 5,x", "-rows 5,", "-rounds 0", "-cell 0s", "-attack -1s", "-zipf 0", "more", "-quick -zipf 0"} {
		if _, err := parsePlan(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
