package decide

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

func TestDecideVectors(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	conformance.Run(t, "../testdata/checkout/testdata/vectors", func(t *testing.T, clock *conformance.Clock) *limiter.Limiter {
		return bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
	})
}
