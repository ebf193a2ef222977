package limiter

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkMemory measures Allow in memory: on known keys, on new keys while idle ones
// are forgotten, and on new keys of a limiter that is full of idle keys or of used ones.
func BenchmarkMemory(b *testing.B) {
	ctx := context.Background()
	const many = 100_000
	var keys [2 * many]string
	for i := range keys {
		keys[i] = fmt.Sprint("key-", i)
	}
	for _, c := range []struct {
		name           string
		known, next    int // keys used before, and by turns
		period         time.Duration
		maxKeys, first int
		used           float64 // units of each known key
	}{
		{"one key", 1, 1, time.Second, 0, 0, 1},
		{"known keys", many, many, time.Second, 0, 0, 1},
		{"new keys", 0, 2 * many, 10 * time.Millisecond, 0, 0, 0},
		{"new keys, full of idle ones", many, many, time.Millisecond, many, many, 1},
		{"new keys, full of used ones", many, many, time.Hour, many, many, 1e6},
	} {
		b.Run(c.name, func(b *testing.B) {
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			l := NewMemory(&Config{MaxKeys: c.maxKeys, Now: func() time.Time { at = at.Add(time.Microsecond); return at }})
			p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1e6, Period: c.period}
			for _, key := range keys[:c.known] {
				if _, err := l.AllowN(ctx, p, key, c.used); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_, _ = l.Allow(ctx, p, keys[c.first+i%c.next])
			}
		})
	}
}
