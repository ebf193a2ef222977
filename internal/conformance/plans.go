package conformance

import (
	"context"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/limiter"
)

// SwitchPlans makes the given number of steps on l, for one key of base's name and
// algorithm. Each step uses one of two to four policies that differ in their limits,
// bursts and, half the time, periods. It fails rt if they admit more together than Bound
// allows. Some steps call sweep instead.
func SwitchPlans(rt *rapid.T, base limiter.Policy, l *limiter.Limiter, clock *Clock, steps int, sweep func()) {
	plans := drawPlans(rt, base)
	bound := NewBound(plans...)
	at := int64(1_000_000_000)
	for step := range steps {
		p := rapid.SampledFrom(plans).Draw(rt, "plan")
		at += drawStep(rt, p)
		clock.Set(at)
		op := rapid.SampledFrom([]string{"allow", "allow", "allow", "allow_up_to", "allow_up_to", "check", "charge", "sweep"}).Draw(rt, "op")
		if op == "sweep" {
			sweep()
			continue
		}
		r, err := Do(context.Background(), l, p, op, "k", drawUnits(rt, p))
		if err != nil {
			rt.Fatalf("step %d: %v", step, err)
		}
		switch {
		case op == "check":
			continue
		case op == "charge" && r.Granted > 0:
			bound.Begin(at, p)
			continue
		case op == "charge":
			continue
		}
		if err := bound.Admit(at, p, r.Granted); err != nil {
			rt.Fatalf("step %d, under %+v: %v", step, p, err)
		}
	}
}

func drawPlans(rt *rapid.T, base limiter.Policy) []limiter.Policy {
	plans := make([]limiter.Policy, rapid.IntRange(2, 4).Draw(rt, "plans"))
	periods := []time.Duration{base.Period}
	if rapid.Bool().Draw(rt, "periods") {
		periods = []time.Duration{base.Period, base.Period / 5, 6 * base.Period}
	}
	for i := range plans {
		p := base
		p.Limit = rapid.SampledFrom([]float64{1, 2.5, 10, 80, 100, 1000}).Draw(rt, "limit")
		p.Period = rapid.SampledFrom(periods).Draw(rt, "period")
		switch p.Algorithm {
		case limiter.FixedWindow, limiter.SlidingWindowCounter, limiter.SlidingWindowLog:
		default:
			p.Burst = p.Limit * rapid.SampledFrom([]float64{1, 0.5, 3}).Draw(rt, "burst")
		}
		plans[i] = p
	}
	return plans
}

// drawStep returns how far the clock moves: not at all, a little, or to about an edge.
func drawStep(rt *rapid.T, p limiter.Policy) int64 {
	period := p.Period.Microseconds()
	switch rapid.IntRange(0, 9).Draw(rt, "move") {
	case 0, 1, 2:
		return 0
	case 3:
		return 1
	case 4:
		return period
	case 5:
		return period - 1
	case 6:
		return rapid.Int64Range(0, 3*period).Draw(rt, "far")
	}
	return rapid.Int64Range(0, period/4).Draw(rt, "on")
}

func drawUnits(rt *rapid.T, p limiter.Policy) float64 {
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	switch rapid.IntRange(0, 3).Draw(rt, "units") {
	case 0:
		return burst
	case 1:
		return max(1e-5, rapid.Float64Range(0, burst).Draw(rt, "fraction"))
	}
	return float64(rapid.Int64Range(1, max(1, int64(burst/2))).Draw(rt, "whole"))
}
