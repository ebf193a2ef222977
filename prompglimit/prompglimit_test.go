package prompglimit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pglimit/pglimit/limiter"
)

// observed are the series after the calls of TestObserve.
const observed = `
# HELP pglimit_decisions_total Calls of the limiter's methods, by what came of them.
# TYPE pglimit_decisions_total counter
pglimit_decisions_total{outcome="allowed",policy="login",source="",verb="block"} 1
pglimit_decisions_total{outcome="allowed",policy="login",source="memory",verb="allow"} 1
pglimit_decisions_total{outcome="allowed",policy="login",source="memory",verb="charge"} 1
pglimit_decisions_total{outcome="denied",policy="login",source="memory",verb="allow"} 1
pglimit_decisions_total{outcome="error",policy="",source="",verb="allow"} 1
pglimit_decisions_total{outcome="error",policy="login",source="",verb="allow"} 1
# HELP pglimit_units_total Units granted; of other outcomes than allowed, those requested.
# TYPE pglimit_units_total counter
pglimit_units_total{outcome="allowed",policy="login",source="",verb="block"} 0
pglimit_units_total{outcome="allowed",policy="login",source="memory",verb="allow"} 2
pglimit_units_total{outcome="allowed",policy="login",source="memory",verb="charge"} 1
pglimit_units_total{outcome="denied",policy="login",source="memory",verb="allow"} 2
pglimit_units_total{outcome="error",policy="",source="",verb="allow"} 1
pglimit_units_total{outcome="error",policy="login",source="",verb="allow"} 3
# HELP pglimit_breaker_open 1 while the circuit breaker refuses requests, else 0.
# TYPE pglimit_breaker_open gauge
pglimit_breaker_open 0
# HELP pglimit_waiting Callers that wait for the database.
# TYPE pglimit_waiting gauge
pglimit_waiting 0
`

// TestObserve: each outcome has its own series with its units, and keys are in none.
func TestObserve(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	c := New(nil)
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }, Observe: c.Observe})
	c.Watch(l)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}
	for range 2 {
		_, _ = l.AllowN(t.Context(), p, "a secret key", 2)
	}
	_, _ = l.Charge(t.Context(), p, "a secret key", 5)
	_ = l.Block(t.Context(), p, "a secret key", time.Hour)
	_, _ = l.Allow(t.Context(), limiter.Policy{Name: "Chosen by a caller"}, "a secret key")
	c.Observe(t.Context(), limiter.Observation{Verb: limiter.VerbAllow, Request: p.Request("k", 3), Err: errors.New("away"), Duration: time.Second, Rows: 7})

	if err := testutil.GatherAndCompare(registry, strings.NewReader(observed),
		"pglimit_decisions_total", "pglimit_units_total", "pglimit_breaker_open", "pglimit_waiting"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(c, "pglimit_decision_duration_seconds"); n != 4 {
		t.Errorf("%d histograms of durations", n)
	}
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if strings.Contains(family.String(), "secret") {
			t.Errorf("%s has a key", family.GetName())
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// TestSeries: more policies do not make more histograms, which are most of the series.
func TestSeries(t *testing.T) {
	c := New(nil)
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	for policy := range 9 {
		request := limiter.PerMinute(fmt.Sprintf("p%d", policy), 1).Request("k", 1)
		for _, r := range []limiter.Result{
			{Allowed: true, Granted: 1, Source: limiter.SourceDatabase}, {Source: limiter.SourceDatabase}, {Source: limiter.SourceCache},
		} {
			c.Observe(t.Context(), limiter.Observation{Verb: limiter.VerbAllow, Request: request, Result: r, Rows: 1})
		}
	}
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if h := m.GetHistogram(); h != nil {
				series += len(h.GetBucket()) + 2 // and below: +Inf, sum, count
			}
			series++
		}
	}
	if want := 9*3*2 + 2*(14+3) + (9 + 3) + 2; series != want {
		t.Errorf("%d series of nine policies, want %d", series, want)
	}
}

// TestObserveAllocatesNothing: a known series costs no memory.
func TestObserveAllocatesNothing(t *testing.T) {
	c := New(nil)
	o := limiter.Observation{Verb: limiter.VerbAllow, Request: limiter.Policy{Name: "login"}.Request("k", 1), Result: limiter.Result{Allowed: true, Granted: 1}, Rows: 3}
	c.Observe(context.Background(), o)
	if n := testing.AllocsPerRun(100, func() { c.Observe(context.Background(), o) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	c := New(nil)
	o := limiter.Observation{Verb: limiter.VerbAllow, Request: limiter.Policy{Name: "login"}.Request("k", 1), Result: limiter.Result{Allowed: true, Granted: 1}, Rows: 3}
	b.ReportAllocs()
	for b.Loop() {
		c.Observe(context.Background(), o)
	}
}
