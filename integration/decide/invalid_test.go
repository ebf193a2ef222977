package decide

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// century is the longest period.
const century = 36525 * 24 * time.Hour

var (
	nan, inf = math.NaN(), math.Inf(1)
	above    = math.Nextafter(1<<53, inf) // above all units
	// good lets pass what has no decision, but nothing that is invalid.
	good = limiter.Policy{Name: "good", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute, OnError: limiter.FailOpen}
)

// TestDecideBadPolicy: a field just outside its bounds is an error that names it, and no row is
// written.
func TestDecideBadPolicy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	with := func(change func(*limiter.Policy)) limiter.Policy {
		p := good
		change(&p)
		return p
	}
	month := func(change func(*limiter.Policy)) limiter.Policy {
		return with(func(p *limiter.Policy) {
			p.Algorithm, p.Period, p.Calendar = limiter.FixedWindow, 0, limiter.Month
			change(p)
		})
	}
	for name, p := range map[string]limiter.Policy{
		"Name empty":        with(func(p *limiter.Policy) { p.Name = "" }),
		"Name upper":        with(func(p *limiter.Policy) { p.Name = "Login" }),
		"Name long":         with(func(p *limiter.Policy) { p.Name = strings.Repeat("a", 65) }),
		"Name start":        with(func(p *limiter.Policy) { p.Name = "-a" }),
		"Name NUL":          with(func(p *limiter.Policy) { p.Name = "a\x00" }),
		"Name newline":      with(func(p *limiter.Policy) { p.Name = "a\n" }),
		"Algorithm empty":   with(func(p *limiter.Policy) { p.Algorithm = "" }),
		"Algorithm unknown": with(func(p *limiter.Policy) { p.Algorithm = "bucket" }),
		"Limit zero":        with(func(p *limiter.Policy) { p.Limit = 0 }),
		"Limit negative":    with(func(p *limiter.Policy) { p.Limit = -1 }),
		"Limit NaN":         with(func(p *limiter.Policy) { p.Limit = nan }),
		"Limit infinite":    with(func(p *limiter.Policy) { p.Limit = inf }),
		"Limit large":       with(func(p *limiter.Policy) { p.Limit = above }),
		"Limit small":       with(func(p *limiter.Policy) { p.Limit = 0.9e-9 }),
		"Burst negative":    with(func(p *limiter.Policy) { p.Burst = -1 }),
		"Burst NaN":         with(func(p *limiter.Policy) { p.Burst = nan }),
		"Burst infinite":    with(func(p *limiter.Policy) { p.Burst = inf }),
		"Burst large":       with(func(p *limiter.Policy) { p.Burst = above }),
		"Burst small":       with(func(p *limiter.Policy) { p.Burst = 0.9e-9 }),
		"Burst of a window": with(func(p *limiter.Policy) { p.Algorithm, p.Burst = limiter.FixedWindow, 11 }),
		"Period zero":       with(func(p *limiter.Policy) { p.Period = 0 }),
		"Period negative":   with(func(p *limiter.Policy) { p.Period = -time.Second }),
		"Period fraction":   with(func(p *limiter.Policy) { p.Period = time.Second + time.Nanosecond }),
		"Period long":       with(func(p *limiter.Policy) { p.Period = century + time.Microsecond }),
		"Tick negative":     with(func(p *limiter.Policy) { p.Algorithm, p.Tick = limiter.LeakyBucket, -time.Second }),
		"Tick fraction":     with(func(p *limiter.Policy) { p.Algorithm, p.Tick = limiter.LeakyBucket, time.Nanosecond }),
		"Tick elsewhere":    with(func(p *limiter.Policy) { p.Tick = time.Second }),
		"Aligned elsewhere": with(func(p *limiter.Policy) { p.Aligned = true }),
		"BlockFor negative": with(func(p *limiter.Policy) { p.BlockFor = -time.Second }),
		"BlockFor fraction": with(func(p *limiter.Policy) { p.BlockFor = time.Nanosecond }),
		"BlockFor long":     with(func(p *limiter.Policy) { p.BlockFor = century + time.Microsecond }),
		"Durability bad":    with(func(p *limiter.Policy) { p.Durability = 2 }),
		"OnError unknown":   with(func(p *limiter.Policy) { p.OnError = 7 }),
		"LocalShare open":   with(func(p *limiter.Policy) { p.OnError, p.LocalShare = limiter.FailOpen, 0.5 }),
		"LocalShare large":  with(func(p *limiter.Policy) { p.OnError, p.LocalShare = limiter.FailLocal, 1.5 }),
		"LocalShare small":  with(func(p *limiter.Policy) { p.OnError, p.LocalShare = limiter.FailLocal, 1e-7 }),
		"LocalShare NaN":    with(func(p *limiter.Policy) { p.OnError, p.LocalShare = limiter.FailLocal, math.NaN() }),
		"Calendar unknown":  month(func(p *limiter.Policy) { p.Calendar = "Month" }),
		"TimeZone unknown":  month(func(p *limiter.Policy) { p.TimeZone = "Vienna" }),
		"Period of a month": month(func(p *limiter.Policy) { p.Period = time.Hour }),
		"Aligned month":     month(func(p *limiter.Policy) { p.Aligned = true }),
	} {
		_, err := l.Allow(ctx, p, "k")
		var pe *limiter.PolicyError
		if !errors.As(err, &pe) || !errors.Is(err, limiter.ErrInvalid) || pe.Field != strings.Fields(name)[0] {
			t.Errorf("%s: got %v, want a PolicyError of that field", name, err)
		}
		if err := p.Validate(); err == nil {
			t.Errorf("%s: Validate says nothing", name)
		}
	}
	testworld.NoRows(t, pool)
}

// TestDecideBadKey: a key just outside the bounds is an error, and no row is written.
func TestDecideBadKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	keys := map[string]string{
		"empty": "", "NUL": "a\x00b", "bad UTF-8": "a\xff", "half a rune": "\xe2\x82", "1 KiB + 1": strings.Repeat("k", 1025),
	}
	for name, key := range keys {
		_, allow := l.Allow(ctx, good, key)
		for verb, err := range map[string]error{"Allow": allow, "Reset": l.Reset(ctx, good, key), "Block": l.Block(ctx, good, key, time.Second), "Unblock": l.Unblock(ctx, good, key)} {
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "key") {
				t.Errorf("key %s, %s: got %v", name, verb, err)
			}
		}
	}
	testworld.NoRows(t, pool)
}

// TestDecideBadCost: a cost or a duration just outside the bounds is an error, what an algorithm
// does not have is unsupported, and what never fits is denied. No row is written.
func TestDecideBadCost(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	costs := map[string]float64{
		"zero": 0, "negative": -1, "NaN": nan, "infinite": inf, "-infinite": math.Inf(-1), "large": above,
		"below a billionth": math.Nextafter(1e-9*10, 0), "least denormal": math.SmallestNonzeroFloat64,
	}
	for name, cost := range costs {
		for _, verb := range []func(context.Context, limiter.Policy, string, float64) (limiter.Result, error){l.AllowN, l.AllowUpTo, l.Charge, l.Refund} {
			if r, err := verb(ctx, good, "k", cost); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "cost") || r.Allowed {
				t.Errorf("cost %s: got %+v, %v", name, r, err)
			}
		}
		if _, err := l.Check(ctx, good, "k", cost); (err == nil) != (cost == 0) {
			t.Errorf("Check at cost %s: got %v", name, err)
		}
	}
	for _, d := range []time.Duration{0, -time.Second, time.Nanosecond, century + time.Microsecond} {
		if err := l.Block(ctx, good, "k", d); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "duration") {
			t.Errorf("Block for %v: got %v", d, err)
		}
	}
	queue := good
	queue.Algorithm = limiter.LeakyBucketQueue
	if _, err := l.Refund(ctx, queue, "k", 1); !errors.Is(err, limiter.ErrUnsupported) {
		t.Errorf("Refund on a queue: got %v", err)
	}
	if err := l.Wait(ctx, good, "k", 1); !errors.Is(err, limiter.ErrUnsupported) {
		t.Errorf("Wait on a token bucket: got %v", err)
	}
	// A request that can never fit is a denial, and writes nothing either.
	if r := testworld.Must(t)(l.AllowN(ctx, good, "k", 10.001)); r.Allowed || r.RetryAfter != limiter.Never {
		t.Errorf("above the burst: %+v", r)
	}
	testworld.NoRows(t, pool)
}

// TestDecideBounds: just inside its bounds everything is allowed.
func TestDecideBounds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := testworld.NewLimiter(t, testworld.NewPool(t), nil)
	for i, p := range testworld.Variants(10, time.Minute) {
		for _, key := range []string{strings.Repeat("k", 1024), strings.Repeat("€", 341), "\u0001\t\n'\"\\;--"} {
			if r := testworld.Must(t)(l.AllowN(ctx, p, key, 1e-9*10)); !r.Allowed {
				t.Errorf("variant %d: %+v", i, r)
			}
		}
		p.Limit, p.Period = 1<<53, century-century%time.Microsecond
		p.Name = fmt.Sprint("wide-", i)
		if r := testworld.Must(t)(l.AllowN(ctx, p, "k", 1<<53)); !r.Allowed {
			t.Errorf("variant %d: %+v", i, r)
		}
		if r := testworld.Must(t)(l.Charge(ctx, p, "k", 1<<53)); !r.Full {
			t.Errorf("variant %d: %+v", i, r)
		}
		p.Limit, p.Name, p.Tick = 1e-9, fmt.Sprint("narrow-", i), 0
		if r := testworld.Must(t)(l.AllowN(ctx, p, "k", 1e-9)); !r.Allowed {
			t.Errorf("variant %d: %+v", i, r)
		}
		if r := testworld.Must(t)(l.AllowN(ctx, p, "k", 1e-9)); r.Allowed {
			t.Errorf("variant %d: %+v", i, r)
		}
		p.Period, p.Name = time.Microsecond, fmt.Sprint("quick-", i)
		testworld.Must(t)(l.AllowN(ctx, p, "k", 1e-9))
	}
}
