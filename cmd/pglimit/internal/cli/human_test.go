package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestDecision(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]limiter.Result{
		"allowed: 9 of 10 remaining, reset after 6s":                           {Allowed: true, Remaining: 9, Burst: 10, ResetAfter: 6 * time.Second},
		"allowed: in 2s, 0.5 of 10 remaining":                                  {Allowed: true, Remaining: 0.5, Burst: 10, Delay: 2 * time.Second},
		"denied (limit): retry after 1s":                                       {Reason: limiter.ReasonLimit, RetryAfter: time.Second},
		"denied (blocked): the block has no end":                               {Reason: limiter.ReasonBlocked, RetryAfter: limiter.Never, Burst: 10},
		"denied: the cost is more than the limit ever allows; the burst is 10": {Reason: limiter.ReasonLimit, RetryAfter: limiter.Never, Burst: 10},
	} {
		if got := Decision(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	big := limiter.Result{Reason: limiter.ReasonLimit, RetryAfter: limiter.Never, Burst: 10}
	if got, want := Decision(big)+Floored(limiter.Request{Cost: 9, Floor: 0.2}, big), "the burst is 10, and the floor keeps 2 of it free"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	big.Reason, big.Policy.Algorithm = limiter.ReasonBlocked, limiter.Balance // its block ends
	if got, want := Decision(big), "denied (blocked): the balance has too few units too"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLeft: a balance has no burst that its units could be a part of.
func TestLeft(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]limiter.Result{
		"9 of 10 remaining":          {Remaining: 9, Burst: 10},
		"45 remaining":               {Remaining: 45, Policy: limiter.Policy{Algorithm: limiter.Balance}},
		"45 remaining, 0 of 10 owed": {Remaining: 45, Burst: 10, Policy: limiter.Policy{Algorithm: limiter.Balance}},
	} {
		if got := Left(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "1ms", 999500 * time.Microsecond: "1s", 7200001 * time.Microsecond: "7.21s", 3599940593 * time.Microsecond: "1h", time.Minute + 1: "1m1s", 1000 * time.Hour: "1000h", limiter.Never: "2562047h47m16.854775807s", 48 * time.Hour: "2d",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 10: "10", 2.5: "2.5", 0.0000001: "0", 1.0 / 3: "0.333333"} {
		if got := Units(v); got != want {
			t.Errorf("%v: got %q, want %q", v, got, want)
		}
	}
}
