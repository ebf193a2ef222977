package denials

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestDenyCacheChangesNoDecision compares a limiter with a cache that only RetryAfter ends
// with one in memory, which decides each request again. Decisions, reasons and times are
// the same, whatever the cache answered before.
//   - Units counted since a remembered denial can only make its RetryAfter too short.
//   - Levels are as of that denial and are not compared.
//   - A microsecond's difference is allowed: requests answered from the cache do not bring
//     the database's rows up to date.
func TestDenyCacheChangesNoDecision(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	d := search.Draw{Equal: true, Coarse: true, OnePlan: true, Names: 1, Keys: 1, Forward: true, Retries: true,
		Operations: search.Simple + " refund refund allow allow allow allow allow allow allow allow"}
	testworld.Search(t, d, 50, func(t *testing.T) func(*search.History) search.Subject {
		var answered atomic.Int64
		t.Cleanup(func() {
			if answered.Load() < 20 {
				t.Errorf("only %d answers from the cache", answered.Load())
			}
		})
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			config.DisableDenyCache, config.DenyCacheTTL = false, time.Hour
			s.Ways = search.By(testworld.NewLimiter(t, pool, config))
			counted := false // something was, since the last denial by the database
			s.Alike = func(step *search.Step, got, want limiter.Result) bool {
				cached := got.Source == limiter.SourceCache
				if cached {
					answered.Add(1)
				}
				same := got.Allowed == want.Allowed && testworld.Near(got.Granted, want.Granted) && got.At.Equal(want.At)
				if counted && cached {
					same = same && got.RetryAfter-time.Microsecond <= want.RetryAfter
				} else {
					same = same && got.Reason == want.Reason && nearly(got.RetryAfter, want.RetryAfter) && nearly(got.ResetAfter, want.ResetAfter)
				}
				if step.Op == "allow" && !got.Allowed && !cached {
					counted = false
				}
				counted = counted || got.Granted > 0
				return same
			}
			return s
		}
	}, search.Variants(10, 10*time.Second)...)
}

func nearly(a, b time.Duration) bool { return a-b <= time.Microsecond && b-a <= time.Microsecond }
