package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestFairShares(t *testing.T) {
	for _, c := range []struct {
		demands []float64
		units   float64
		want    []float64
	}{
		{[]float64{10, 10}, 10, []float64{5, 5}},
		{[]float64{80, 10, 10}, 60, []float64{40, 10, 10}},
		{[]float64{80, 30, 10}, 60, []float64{25, 25, 10}},
		{[]float64{8, 1}, 9, []float64{8, 1}},
	} {
		if got := fairShares(c.demands, c.units); !slices.Equal(got, c.want) {
			t.Errorf("%v units among %v: %v, want %v", c.units, c.demands, got, c.want)
		}
	}
}

// TestWithinBound: the burst at once, then the limit, in any span and in any order.
func TestWithinBound(t *testing.T) {
	p, start := limiter.Policy{Limit: 10, Period: time.Second, Burst: 20}, time.Now()
	at := func(after time.Duration, units float64) decision {
		return decision{Result: limiter.Result{At: start.Add(after), Granted: units}}
	}
	all := []decision{at(10*time.Second, 5), at(0, 20), at(time.Second, 10), at(10*time.Second, 15), at(11*time.Second, 10)}
	if err := withinBound(p, all); err != nil {
		t.Error(err)
	}
	for _, over := range []decision{at(time.Second/2, 6), at(11*time.Second, 1)} {
		if err := withinBound(p, append(all, over)); err == nil {
			t.Errorf("%v more units after %v are within the bound", over.Granted, over.At.Sub(start))
		}
	}
}

// TestCrowdFigures: decisions before and after the measurement do not count.
func TestCrowdFigures(t *testing.T) {
	start := time.Now()
	var all []decision
	for i := range 4 {
		d := decision{process: i % 2, began: start.Add(time.Duration(i) * time.Second), took: time.Duration(i)}
		if d.process == 1 {
			d.Granted, d.Source = 1, limiter.SourceLease
		}
		all = append(all, d)
	}
	c := crowd{policy: limiter.Policy{Limit: 1, Period: time.Second}, demand: make([]float64, 2)}
	got := c.figures(all, &sends{at: []time.Time{start, start.Add(2 * time.Second)}}, start.Add(time.Second), start.Add(3*time.Second)).String()
	if want := "admitted 0.5, decisions/s 1, from leases 0.5, p50 2ns, p99 2ns, poorest 0, statements 0.5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	picture := drawBurst(c.policy, all)
	if strings.Count(picture, "<polygon") != 8 || strings.Count(picture, "<polyline") != 1 || len(picture) > 60_000 {
		t.Errorf("%d bytes: %s", len(picture), picture)
	}
}
