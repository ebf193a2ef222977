package decide

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// BenchmarkDecision compares one decision with a bare upsert that counts, over 1,000 keys
// and the same pool. The two take turns, so that a machine whose speed drifts slows both.
// of-bare is the median of their ratios in throughput.
//
//	go test ./integration/decide -run - -bench Decision -benchtime 40x
func BenchmarkDecision(b *testing.B) {
	ctx := b.Context() // cancellable, as an application's is
	pool := testworld.Connect(b, testworld.NewDatabase(b), func(c *pgxpool.Config) { c.MaxConns = 16 })
	testworld.Exec(b, pool, `CREATE TABLE bare (policy text COLLATE "C", key text COLLATE "C", n bigint NOT NULL, PRIMARY KEY (policy, key)) WITH (fillfactor = 70)`)
	bare := func(key string) error {
		var n int64
		return pool.QueryRow(ctx, `INSERT INTO bare AS t VALUES ($1, $2, 1) ON CONFLICT (policy, key) DO UPDATE SET n = t.n + 1 RETURNING n`, "bench", key).Scan(&n)
	}
	l := testworld.NewLimiter(b, pool, &limiter.Config{DisableDenyCache: true})
	for _, callers := range []int{1, 16} {
		for _, a := range limiter.Algorithms() {
			p := limiter.Policy{Name: "bench", Algorithm: a, Limit: 100, Period: time.Second}
			allow := func(key string) error { _, err := l.Allow(ctx, p, key); return err }
			b.Run(fmt.Sprintf("%s/callers=%d", a, callers), func(b *testing.B) {
				stint(b, callers, bare) // rows and plans are there
				stint(b, callers, allow)
				var ratios []float64
				var decided time.Duration
				for b.Loop() {
					upserts := stint(b, callers, bare)
					decisions := stint(b, callers, allow)
					decided += decisions
					ratios = append(ratios, float64(upserts)/float64(decisions))
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[len(ratios)/2], "of-bare")
				b.ReportMetric(float64(len(ratios)*stintCalls)/decided.Seconds(), "decisions/s")
			})
		}
	}
}

const stintCalls = 1000

// stint makes stintCalls calls by callers at once.
func stint(b *testing.B, callers int, call func(key string) error) time.Duration {
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= stintCalls; i = next.Add(1) {
				if err := call(fmt.Sprint("key", i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}
