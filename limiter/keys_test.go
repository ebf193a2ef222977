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
