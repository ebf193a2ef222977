package denials

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// TestDenyCacheAllocates nothing. It is not parallel, because allocations are counted for
// the whole process.
func TestDenyCacheAllocates(t *testing.T) {
	for name, config := range cachedConfigs() {
		l, p, key := denied(t, config)
		ctx := t.Context()
		if n := testing.AllocsPerRun(1000, func() {
			if r, err := l.Allow(ctx, p, key); err != nil || r.Source != limiter.SourceCache {
				t.Fatalf("%s: %+v, %v", name, r, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for a cached denial", name, n)
		}
	}
}

func cachedConfigs() map[string]*limiter.Config {
	return map[string]*limiter.Config{
		"plain":  {DenyCacheTTL: time.Hour},
		"secret": {DenyCacheTTL: time.Hour, KeySecret: []byte("a secret for the keys")},
	}
}

// BenchmarkCachedDenial requests one key that was denied.
func BenchmarkCachedDenial(b *testing.B) {
	for name, config := range cachedConfigs() {
		b.Run(name, func(b *testing.B) {
			l, p, key := denied(b, config)
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if r, err := l.Allow(ctx, p, key); err != nil || r.Source != limiter.SourceCache {
					b.Fatalf("%+v, %v", r, err)
				}
			}
		})
	}
}

// denied creates a limiter that remembers the denial of a key.
func denied(t testing.TB, config *limiter.Config) (*limiter.Limiter, limiter.Policy, string) {
	l := testworld.NewLimiter(t, testworld.NewPool(t), config)
	p := limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: 1000 * time.Hour}
	key := fmt.Sprint("198.51.100.", 7)
	testworld.Must(t)(l.Charge(t.Context(), p, key, 5))
	testworld.Must(t)(l.Allow(t.Context(), p, key))
	return l, p, key
}
