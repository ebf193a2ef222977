package limiter_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestKeysInMemory: no more keys than MaxKeys are in use, however many callers add some, and
// idle ones make room.
func TestKeysInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, p := limiter.NewMemory(nil), limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute, MaxKeys: 50}
		flood := func(prefix string) (allowed int64) {
			var n atomic.Int64
			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() {
					r, err := l.Allow(t.Context(), p, fmt.Sprint(prefix, i))
					if err != nil || !r.Allowed && (r.Reason != limiter.ReasonKeys || r.RetryAfter != time.Minute) {
						t.Error(r, err)
					}
					if r.Allowed {
						n.Add(1)
					}
				})
			}
			all.Wait()
			return n.Load()
		}
		if n := flood("a"); n != 50 {
			t.Errorf("%d keys of 50 were allowed", n)
		}
		if n := flood("b"); n != 0 {
			t.Errorf("%d keys more were allowed", n)
		}
		time.Sleep(7 * time.Second) // a unit leaks in 6
		if n := flood("c"); n != 50 {
			t.Errorf("%d keys of 50 were allowed after the others were idle", n)
		}
	})
}

// TestKeysWithoutARow: what each method answers for a key that has no row and gets none.
func TestKeysWithoutARow(t *testing.T) {
	t.Parallel()
	l, ctx := limiter.NewMemory(nil), t.Context()
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute, MaxKeys: 1}
	if r, err := l.Allow(ctx, p, "first"); err != nil || !r.Allowed {
		t.Fatal(r, err)
	}
	shared := p
	shared.RestLimit = 5
	for what, do := range map[string]func(p limiter.Policy) (limiter.Result, error){
		"Allow":      func(p limiter.Policy) (limiter.Result, error) { return l.Allow(ctx, p, "k") },
		"AllowUpTo":  func(p limiter.Policy) (limiter.Result, error) { return l.AllowUpTo(ctx, p, "k", 1) },
		"Check":      func(p limiter.Policy) (limiter.Result, error) { return l.Check(ctx, p, "k", 1) },
		"Check at 0": func(p limiter.Policy) (limiter.Result, error) { return l.Check(ctx, p, "k", 0) },
	} {
		if r, err := do(p); err != nil || r.Allowed || r.Reason != limiter.ReasonKeys {
			t.Errorf("%s: %+v, %v, want a denial", what, r, err)
		}
		if r, err := do(shared); err != nil || !r.Allowed || r.Limit != 5 {
			t.Errorf("%s: %+v, %v, want the shared row's answer", what, r, err)
		}
	}
	all, err := l.AllowAll(ctx, shared.Request("k", 1))
	hold, err2 := l.Reserve(ctx, shared.Request("k", 1), time.Minute)
	once, err3 := l.Do(ctx, limiter.Request{Policy: shared, Key: "k", Cost: 1, IdempotencyKey: "a"})
	if err != nil || err2 != nil || err3 != nil {
		t.Fatal(err, err2, err3)
	}
	for what, r := range map[string]limiter.Result{"AllowAll of one": all.PerRequest[0], "Reserve": hold.Result, "an IdempotencyKey": once} {
		if r.Allowed || r.Reason != limiter.ReasonKeys {
			t.Errorf("%s: %+v, want a denial: the shared row does not answer it", what, r)
		}
	}
	if r, err := l.Charge(ctx, p, "k", 1); err != nil || !r.Allowed || r.Granted != 0 {
		t.Errorf("Charge: %+v, %v, want nothing recorded", r, err)
	}
}

// TestKeysValidate: a policy's fields about keys have ranges.
func TestKeysValidate(t *testing.T) {
	t.Parallel()
	good := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute, MaxKeys: 1, RestLimit: 1e-9}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(p *limiter.Policy){
		"pglimit: invalid policy: MaxKeys -1: must be from 1 to 1e9, or 0 for no bound":                           func(p *limiter.Policy) { p.MaxKeys = -1 },
		"pglimit: invalid policy: MaxKeys 1000000001: must be from 1 to 1e9, or 0 for no bound":                   func(p *limiter.Policy) { p.MaxKeys = 1e9 + 1 },
		"pglimit: invalid policy: RestLimit 0.000000001: is for policies with MaxKeys: leave it 0":                func(p *limiter.Policy) { p.MaxKeys = 0 },
		"pglimit: invalid policy: RestLimit -1: must be from 1e-9 to 2^53, or 0 for none":                         func(p *limiter.Policy) { p.RestLimit = -1 },
		"pglimit: invalid policy: RestLimit 0.000000001: makes a Burst of 1e-10, which must be from 1e-9 to 2^53": func(p *limiter.Policy) { p.Burst = 1 },
	} {
		p := good
		change(&p)
		if err := p.Validate(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", p, err, want)
		}
	}
}
