package integration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// BenchmarkDecision sets one decision beside a bare upsert that counts, over
// 1,000 keys, through the same pool and in the same run:
//
//	go test ./integration -run - -bench Decision -count 5
func BenchmarkDecision(b *testing.B) {
	ctx := context.Background()
	pool := newPool(b)
	exec(b, pool, `CREATE TABLE bare (policy text COLLATE "C", key text COLLATE "C", n bigint NOT NULL, PRIMARY KEY (policy, key)) WITH (fillfactor = 70)`)
	l := newLimiter(b, pool, nil)
	ways := map[string]func(key string) error{"bare": func(key string) error {
		var n int64
		return pool.QueryRow(ctx, `INSERT INTO bare AS t VALUES ($1, $2, 1) ON CONFLICT (policy, key) DO UPDATE SET n = t.n + 1 RETURNING n`, "bench", key).Scan(&n)
	}}
	order := []string{"bare"}
	for _, a := range limiter.Algorithms() {
		p := limiter.Policy{Name: "bench", Algorithm: a, Limit: 100, Period: time.Second}
		ways[string(a)] = func(key string) error { _, err := l.Allow(ctx, p, key); return err }
		order = append(order, string(a))
	}
	for _, callers := range []int{1, 16} {
		for _, way := range order {
			b.Run(fmt.Sprintf("%s/callers=%d", way, callers), func(b *testing.B) {
				var next atomic.Int64
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							if err := ways[way](fmt.Sprint("key", i%1000)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
