package httplimit

import (
	"net/http"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestSetHeaderWithoutBalance: a balance has no quota for a time, so it adds no RateLimit field to
// those of other limits, and its denial no Retry-After.
func TestSetHeaderWithoutBalance(t *testing.T) {
	t.Parallel()
	l, credits := limiter.NewMemory(nil), limiter.Policy{Name: "credits", Algorithm: limiter.Balance}
	denied := must.OK(l.Allow(t.Context(), credits, "k"))(t)
	h := http.Header{}
	SetHeader(h, denied)
	if len(h) != 0 {
		t.Errorf("of a balance: %v", h)
	}
	SetHeader(h, must.OK(l.Allow(t.Context(), limiter.PerHour("rate", 5), "k"))(t), denied)
	if h.Get("RateLimit-Policy") != `"rate";q=5;w=3600` || h.Get("Retry-After") != "" {
		t.Errorf("beside a rate: %v", h)
	}
}
