package limiter_test

import (
	"testing"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

func TestVectors(t *testing.T) {
	conformance.Run(t, "../testdata/vectors", func(_ *testing.T, clock *conformance.Clock) *limiter.Limiter {
		return limiter.NewMemory(&limiter.Config{Now: clock.Now})
	})
}
