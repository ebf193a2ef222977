package decide

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestLogsAtTheBordersOfTheirParts: logs whose lengths come to the borders of their parts, full
// for several periods, answer as memory does. Now and then all is in entries and totals, as in
// the rows of versions whose logs had no parts.
func TestLogsAtTheBordersOfTheirParts(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	for _, limit := range []int{63, 64, 65, 128, 129, 1000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, uint64(limit)))
			clock := new(conformance.Clock)
			config := &limiter.Config{Now: clock.Now, DisableDenyCache: true}
			l, model := testworld.NewLimiter(t, pool, config), limiter.NewMemory(config)
			p := limiter.Policy{Name: "log", Algorithm: limiter.SlidingWindowLog, Limit: float64(limit), Period: time.Hour, Durability: limiter.Relaxed}
			answer := func(r limiter.Result) string {
				return fmt.Sprint(r.Allowed, r.Level, r.Remaining, r.RetryAfter, r.ResetAfter)
			}
			key, at := fmt.Sprint(limit), int64(0)
			for i := range 3*limit + 300 {
				switch random.IntN(4) {
				case 0: // a pause in which several leave
					at += p.Period.Microseconds() / int64(1+random.IntN(2*limit))
				case 1:
					at += p.Period.Microseconds() / int64(limit)
				}
				clock.Set(at)
				if random.IntN(50) == 0 {
					testworld.Exec(t, pool, `UPDATE pglimit_sliding_window_log SET entries = pglimit_log_whole(entries, gap, taken, older_entries, middle_entries, recent_entries),
						totals = pglimit_log_whole(totals, gap, taken, older_totals, middle_totals, recent_totals), gap = NULL, taken = NULL, older_entries = NULL,
						older_totals = NULL, middle_entries = NULL, middle_totals = NULL, recent_entries = NULL, recent_totals = NULL WHERE key = $1`, key)
				}
				got, want := testworld.Must(t)(l.Allow(t.Context(), p, key)), testworld.Must(t)(model.Allow(t.Context(), p, key))
				if answer(got) != answer(want) {
					t.Fatalf("decision %d: %v, in memory %v", i, answer(got), answer(want))
				}
				if !got.Allowed && random.IntN(2) == 0 { // the moment at which the next fits, and the one before
					at += got.RetryAfter.Microseconds() - int64(random.IntN(2))
				}
			}
			parts := testworld.Value[bool](t, pool, `SELECT coalesce(gap > 0 AND cardinality(recent_entries) > 0, false) FROM pglimit_sliding_window_log WHERE key = $1`, key)
			if most := 128; limit < most && parts || limit > 2*most && !parts {
				t.Errorf("the log has parts: %v", parts)
			}
		})
	}
}
