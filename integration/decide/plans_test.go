package decide

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestPlansAdmitNoMoreThanTheLargest: as for memory, with a janitor that sweeps in
// between.
func TestPlansAdmitNoMoreThanTheLargest(t *testing.T) {
	t.Parallel()
	for _, base := range bed.Variants(10, 10*time.Second) {
		t.Run(bed.Variant(base), func(t *testing.T) {
			t.Parallel()
			pool := bed.NewPool(t)
			clock := new(conformance.Clock)
			l := bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
			j := bed.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
			histories := 0
			rapid.Check(t, func(rt *rapid.T) {
				histories++
				base := base
				base.Name = fmt.Sprintf("plans-%d", histories)
				conformance.SwitchPlans(rt, base, l, clock, 25, func() {
					if removed, err := j.Sweep(t.Context()); err != nil || removed.HeldElsewhere {
						rt.Fatal(removed, err)
					}
				})
			})
			if swept := j.Removed(); swept.Total() == 0 || swept.Kept == 0 {
				t.Errorf("the sweeps deleted %d and kept %d rows: that proves little", swept.Total(), swept.Kept)
			}
		})
	}
}
