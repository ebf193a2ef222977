package main

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// sample is one whose figures are 1, 2 and 3 times as many microseconds, with a clock that
// is late by a tenth.
func sample(micros int) measure.OpenSample {
	d := time.Duration(micros) * time.Microsecond
	return measure.OpenSample{Requests: 100, P50: d, P99: 2 * d, P999: 3 * d, Late: d / 10}
}

// TestReport: each figure is in its place, medians are of the rounds, ratios within a round,
// and the verdicts use the right ones.
func TestReport(t *testing.T) {
	t.Parallel()
	cells := steadyCells()
	for _, c := range cells {
		c.Samples[0] = []measure.OpenSample{sample(60_000), sample(70_000), sample(50_000)}
		c.Samples[1] = []measure.OpenSample{sample(9000), sample(5000), sample(1000)}
		c.Samples[2] = []measure.OpenSample{sample(5010), sample(5010), sample(1000)}
	}
	surge := newSurge()
	// The other keys' p99 in the surge: 1.2, 2 and 1 times those before.
	surge.Samples[0] = []surgeSample{
		{OthersBefore: sample(1000), Others: sample(1200), HotBefore: sample(1100), Hot: sample(3000)},
		{OthersBefore: sample(1000), Others: sample(2000), HotBefore: sample(1100), Hot: sample(4000)},
		{OthersBefore: sample(4000), Others: sample(4000), HotBefore: sample(1100), Hot: sample(5000)},
	}
	surge.Samples[1] = []surgeSample{{OthersBefore: sample(1000), Others: sample(1210), HotBefore: sample(1), Hot: sample(1)}}
	r := report{plan: plan{Rounds: 3, Warmup: time.Second, Length: 6 * time.Second}, Steady: cells, Surge: surge}
	text := r.markdown()
	for _, line := range []string{
		"| one key, 1000 requests a second, 20 callers: p99 | pglimit, Durable | 10.00 ms | 10.00 ms | 2.00 to 18.00 ms | reached |\n",
		"| one key, 1000 requests a second, 50 callers: p99 | pglimit, Relaxed | 10.00 ms | 10.02 ms | 2.00 to 10.02 ms | **not reached** |\n",
		"| 15 times as many for one key: other keys' p99 against before | pglimit, Durable | 1.2 times | 1.20 | 1.00 to 2.00 | reached |\n",
		"| 15 times as many for one key: other keys' p99 against before | pglimit, Relaxed | 1.2 times | 1.21 | 1.21 to 1.21 | **not reached** |\n",
		"| 50 | bare upsert | 60.00 | 120.00 | 100.00 to 140.00 | 180.00 | 6.00 |\n",
		"| 20 | pglimit, Durable | 5.00 | 10.00 | 2.00 to 18.00 | 15.00 | 0.50 |\n",
		"| pglimit, Durable | others | before | 1.00 | 2.00 | 2.00 to 8.00 | 3.00 | 0.10 |\n",
		"| pglimit, Durable | others | surge | 2.00 | 4.00 | 2.40 to 8.00 | 6.00 | 0.20 |\n",
		"| pglimit, Durable | the one | before | 1.10 | 2.20 | 2.20 to 2.20 | 3.30 | 0.11 |\n",
		"| pglimit, Durable | the one | surge | 4.00 | 8.00 | 6.00 to 10.00 | 12.00 | 0.40 |\n",
		"One key gets 1000 requests a second for 6s, and\nthen 15000 for as long.\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is missing", line)
		}
	}
	if strings.Contains(text, "quick") || strings.Contains(text, "p99 | bare upsert") {
		t.Error("a full run is called quick, or the bare upsert has a goal")
	}
	if strings.Count(text, "**not reached**") != 3 {
		t.Error("three goals are missed")
	}
	if t.Failed() {
		t.Log(text)
	}
	r.plan.Quick = true
	if text := r.markdown(); !strings.Contains(text, "A quick run") {
		t.Errorf("a quick run does not say so:\n%s", text)
	}
}
