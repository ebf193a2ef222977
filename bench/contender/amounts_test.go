package contender

import (
	"math"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

func TestAmountsAddUp(t *testing.T) {
	d := &amountDecider{Limiter: &Limiter{limiter.NewMemory(nil), Counting("amounts").Policy(limiter.Durable)}}
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
