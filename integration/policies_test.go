package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// variants is every algorithm in each of its forms, with limit units per
// period and that burst.
func variants(limit float64, period time.Duration) []limiter.Policy {
	var all []limiter.Policy
	for _, a := range limiter.Algorithms() {
		all = append(all, limiter.Policy{Algorithm: a, Limit: limit, Period: period})
		if a == limiter.LeakyBucket {
			all = append(all, limiter.Policy{Algorithm: a, Limit: limit, Period: period, Tick: period / 4})
		}
		if a == limiter.FixedWindow {
			all = append(all, limiter.Policy{Algorithm: a, Limit: limit, Period: period, Aligned: true})
		}
	}
	for i := range all {
		all[i].Name = fmt.Sprintf("variant-%d", i)
	}
	return all
}

// variant names a policy's algorithm and form.
func variant(p limiter.Policy) string {
	switch {
	case p.Tick != 0:
		return string(p.Algorithm) + " in ticks"
	case p.Aligned:
		return string(p.Algorithm) + " aligned"
	}
	return string(p.Algorithm)
}

// newLimiter is patient where config says nothing of Timeout.
func newLimiter(t testing.TB, pool *pgxpool.Pool, config *limiter.Config) *limiter.Limiter {
	t.Helper()
	l, err := limiter.New(pool, withPatience(config))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestVectors(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	conformance.Run(t, "testdata/checkout/testdata/vectors", func(t *testing.T, clock *conformance.Clock) *limiter.Limiter {
		return newLimiter(t, pool, &limiter.Config{Now: clock.Now, DenyCacheTTL: -1})
	})
}
