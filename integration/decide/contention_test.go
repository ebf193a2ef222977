package decide

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

const (
	rounds = 20
)

// TestDecideNeverOverAdmits has 32 goroutines on 4 pools request 1 to 3 units of one cold
// key until none is left. Exactly the limit is admitted, in 20 rounds of every variant,
// without and with a janitor that sweeps a hundred times a second.
func TestDecideNeverOverAdmits(t *testing.T) {
	t.Parallel()
	for _, withJanitor := range []bool{false, true} {
		t.Run(fmt.Sprintf("janitor=%v", withJanitor), func(t *testing.T) {
			t.Parallel()
			limiters := limitersOnPools(t, bed.NewDatabase(t))
			if withJanitor {
				bed.SweepOften(t, bed.Connect(t, limiters.url))
			}
			for _, p := range bed.Variants(bed.CapUnit, 1000*time.Hour) {
				t.Run(bed.Variant(p), func(t *testing.T) {
					for round := range rounds {
						if got := bed.Storm(t, limiters.all, p, fmt.Sprint("key", round)); got != bed.CapUnit {
							t.Fatalf("round %d: admitted %v units of %v", round, got, bed.CapUnit)
						}
					}
				})
			}
		})
	}
}

type pooledLimiters struct {
	url string
	all []*limiter.Limiter
}

func limitersOnPools(t *testing.T, url string) pooledLimiters {
	p := pooledLimiters{url: url}
	for range bed.Pools {
		p.all = append(p.all, bed.NewLimiter(t, bed.Connect(t, url), nil))
	}
	return p
}
