package metrics

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestSeries: a name that a caller may have chosen, and units that are no number, are in no
// series.
func TestSeries(t *testing.T) {
	var last limiter.Observation
	l := limiter.NewMemory(&limiter.Config{Observe: func(_ context.Context, o limiter.Observation) { last = o }})
	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Hour}
	ctx := t.Context()
	for name, call := range map[string]func(){
		"a policy that is not valid":      func() { _, _ = l.Allow(ctx, limiter.Policy{Name: "x1"}, "k") },
		"a reservation that is not there": func() { _, _ = l.Settle(ctx, "token_bucket:AAAAAAAAAAAAAAAA:x1:a2V5", 0) },
		"one that counts nothing":         func() { _, _ = l.Settle(ctx, "uncounted:AAAAAAAAAAAAAAAA:x1:a2V5", 0) },
		"its end":                         func() { _ = l.Cancel(ctx, "uncounted:AAAAAAAAAAAAAAAA:x1:a2V5") },
	} {
		last = limiter.Observation{}
		if call(); last.Verb == "" || Of(&last).Policy != "" {
			t.Errorf("%s: %+v", name, Of(&last))
		}
	}
	for _, n := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, 1 << 60} {
		if _, err := l.AllowN(ctx, p, "k", n); !errors.Is(err, limiter.ErrInvalid) || UnitsOf(&last) != 0 || Of(&last).Policy != "login" {
			t.Errorf("%v units are %v of %+v: %v", n, UnitsOf(&last), Of(&last), err)
		}
	}
	all, err := l.AllowAll(ctx, p.Request("a", 5), p.Request("b", 6))
	if err != nil || all.Allowed || !all.PerRequest[0].Allowed {
		t.Fatalf("%+v, %v", all, err)
	}
	first := limiter.Observation{Verb: limiter.VerbAllowAll, Request: p.Request("a", 5), Result: all.PerRequest[0]}
	if first.Outcome() != limiter.OutcomeDenied || UnitsOf(&first) != 5 {
		t.Errorf("%s, %v units", first.Outcome(), UnitsOf(&first))
	}
}
