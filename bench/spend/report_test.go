package main

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// TestReport: each ratio is within one round, and the verdicts use the right ones.
func TestReport(t *testing.T) {
	t.Parallel()
	at := func(p50 int, perSecond ...int64) (list []measure.Sample) {
		for _, n := range perSecond {
			list = append(list, measure.Sample{Decisions: n, Elapsed: time.Second, P50: time.Duration(p50) * time.Microsecond, P99: 2 * time.Millisecond})
		}
		return list
	}
	ms := func(list ...int) (all []time.Duration) {
		for _, n := range list {
			all = append(all, time.Duration(n)*10*time.Microsecond)
		}
		return all
	}
	order := &cell{What: "an order", Callers: 1, Commit: "on", Contenders: []contender{orderBare, orderSpend},
		Samples:  [][]measure.Sample{at(1000, 100, 200, 100), at(1150, 50, 150, 50)},
		Counting: [][]time.Duration{ms(100, 10, 20), ms(125, 12, 26)}}
	two := &cell{What: "two", Callers: 64, Two: true, Commit: "off", Contenders: []contender{twoBare, twoAll},
		Samples:  [][]measure.Sample{at(1, 100, 1000, 10), at(1, 95, 100, 10)},
		Counting: [][]time.Duration{ms(0, 0, 0), ms(0, 0, 0)}}
	r := report{Trips: 1, Cells: []*cell{order, two}}
	text := r.markdown()
	for _, line := range []string{
		"| BEGIN; INSERT of an order; `InTx(tx).AllowN`; COMMIT | 50 | 0.50 | 1.15 | 2.00 | 0.26 | 1.25 |\n",
		"1 callers: p50 at most 1.15 times that of one with a bare upsert, the spend in 1 round trip: 1.15 (rounds 1.15 to 1.15) times, in 1: **reached**\n- the spend alone, 1 callers: 1.25 times",
		"at least 0.95 of two sorted bare upserts in a transaction of four round trips: 0.95 (rounds 0.10 to 1.00): **reached**\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is missing in\n%s", line, text)
		}
	}
	r.Trips = 2
	two.Samples[1] = at(1, 94, 100, 10)
	if text := r.markdown(); strings.Count(text, "**not reached**") != 2 {
		t.Errorf("two goals are missed, but\n%s", text)
	}
}
