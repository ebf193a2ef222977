package contender

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// inMemory returns an AmountDecider without a database.
func inMemory(burst float64) *amountDecider {
	return &amountDecider{limiterDecider: &limiterDecider{limiter.NewMemory(nil), limiter.Policy{
		Name: "amounts", Algorithm: limiter.TokenBucket, Limit: 1, Period: 100 * 365 * 24 * time.Hour, Burst: burst,
	}}}
}

func TestAmountsAddUp(t *testing.T) {
	d := inMemory(1e9)
	for range differently {
		if ok, err := d.Decide(t.Context(), "a"); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	// 1.01 and so on to 11.00.
	const want = differently * (1.01 + 11) / 2
	used, err := d.Used(t.Context(), "a")
	if err != nil || math.Abs(used-want) > 0.01 || math.Abs(d.Allowed()-want) > 0.01 {
		t.Errorf("%v units in use, %v; %v allowed; want %v", used, err, d.Allowed(), want)
	}
}

type fixedAmount float64

func (fixedAmount) Decide(context.Context, string) (bool, error)  { return false, nil }
func (fixedAmount) Used(context.Context, string) (float64, error) { return 0, nil }
func (f fixedAmount) Allowed() float64                            { return float64(f) }

func TestExact(t *testing.T) {
	const requests, limit = 20, 10
	d := inMemory(limit)
	for range requests {
		if _, err := d.Decide(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if !Exact(d, limit, requests) {
		t.Errorf("a limiter in memory allowed %v of a limit of %d", d.Allowed(), limit)
	}
	for allowed, want := range map[fixedAmount]bool{10: true, 10.01: false, 8.81: true, 8.79: false, 0: false} {
		if got := Exact(allowed, limit, requests); got != want {
			t.Errorf("%v of a limit of 10 is exact: %v, want %v", allowed, got, want)
		}
	}
}
