// Package marks tests the events of keys that have reached a mark, over a real PostgreSQL server.
package marks

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

// marked is every algorithm that has marks, in each of its forms.
func marked(limit float64) (all []limiter.Policy) {
	for _, p := range testworld.Variants(limit, 1000*time.Hour) {
		if p.Algorithm != limiter.LeakyBucketQueue {
			p.Marks = "80%,100%"
			all = append(all, p)
		}
	}
	return all
}

// together calls f from n goroutines at once.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// events returns the marks of a key in millionths, each as often as it is recorded.
func events(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string) []int64 {
	t.Helper()
	return testworld.Value[[]int64](t, pool, `SELECT coalesce(array_agg(mark ORDER BY mark, window_ends_at_us), '{}') FROM pglimit_event
		WHERE policy = $1 AND key = $2`, p.Name, key)
}

// expect fails the test unless a key has recorded these marks.
func expect(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string, want ...int64) {
	t.Helper()
	if got := events(t, pool, p, key); !slices.Equal(got, want) {
		t.Errorf("%s, key %s: marks %v are recorded, not %v", fmt.Sprint(p), key, got, want)
	}
}

const (
	most = 800_000
	all  = 1_000_000
)
