package calendar

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestCalendarTurnsBetweenAllowAlls: if the database's clock moves to another period than
// expected between two requests for keys that have room, the second is counted once, and in
// that period.
func TestCalendarTurnsBetweenAllowAlls(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, set := otherClock(t, "real")
	pool := bed.Connect(t, address)
	for i, algorithm := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowLog} { // whose table comes before, is the same, comes after
		ahead := time.Duration(i+1) * 60 * 24 * time.Hour
		l := bed.NewLimiter(t, pool, nil)
		plain := limiter.Policy{Name: "plain", Algorithm: algorithm, Limit: 100, Period: 800_000 * time.Hour}
		month := limiter.Policy{Name: fmt.Sprint("month", i), Algorithm: limiter.FixedWindow, Limit: 100, Calendar: limiter.Month}
		set("real")
		for n := range 4 {
			if n == 2 {
				set(fmt.Sprintf("real + interval '%d s'", int(ahead.Seconds())))
			}
			all := bed.MustAll(t)(l.AllowAll(ctx, plain.Request("k", 1), month.Request("k", 1)))
			if want := float64(n%2 + 1); !all.Allowed || !bed.Near(all.PerRequest[1].Level, want) || math.Round(all.PerRequest[0].Level) != float64(n+1) { // the bucket leaks a little
				t.Errorf("%s, request %d: %+v, want level %v in the month", algorithm, n, all, want)
			}
		}
	}
}
