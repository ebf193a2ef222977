package bound

import (
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		algorithm limiter.Algorithm
		burst     float64
		elapsed   time.Duration
		want      float64
	}{
		{limiter.TokenBucket, 0, 0, 10},
		{limiter.TokenBucket, 30, 90 * time.Second, 45},
		{limiter.LeakyBucket, 0, 2 * time.Minute, 30},
		{limiter.LeakyBucketQueue, 20, time.Minute, 30},
		{limiter.GCRA, 0, time.Minute, 20},
		{limiter.FixedWindow, 0, 59 * time.Second, 10},
		{limiter.FixedWindow, 0, time.Minute, 20},
		{limiter.SlidingWindowLog, 0, 59 * time.Second, 10},
		{limiter.SlidingWindowLog, 0, 2 * time.Minute, 30},
		{limiter.SlidingWindowCounter, 0, 0, 10},
		{limiter.SlidingWindowCounter, 0, 30 * time.Second, 15},
		{limiter.SlidingWindowCounter, 0, 90 * time.Second, 30},
	} {
		p := limiter.Policy{Name: "p", Algorithm: c.algorithm, Limit: 10, Period: time.Minute, Burst: c.burst}
		if got := allowed(p, c.elapsed); got != c.want {
			t.Errorf("%s, burst %v, after %v: got %v, want %v", c.algorithm, c.burst, c.elapsed, got, c.want)
		}
	}
	small := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Minute}
	large := small
	large.Limit = 30
	tall := small
	tall.Burst = 100
	for _, c := range []struct {
		plans []limiter.Policy
		want  float64
	}{
		{nil, 0},
		{[]limiter.Policy{small}, 20},
		{[]limiter.Policy{small, large}, 60},
		{[]limiter.Policy{large, small}, 60},
		{[]limiter.Policy{small, large, tall}, 110},
	} {
		if got := Allowed(c.plans, time.Minute); got != c.want {
			t.Errorf("%v: got %v, want %v", c.plans, got, c.want)
		}
	}
	if Exceeded(30, 30) || Exceeded(30, 30-1e-9) || !Exceeded(31, 30) {
		t.Error("Exceeded")
	}
}
