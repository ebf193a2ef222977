package main

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/bench/measure"
)

// TestReport: each figure is in its place, and the verdict considers only the p99 with a
// locked row.
func TestReport(t *testing.T) {
	t.Parallel()
	sample := func(p99 time.Duration) measure.Sample {
		return measure.Sample{Decisions: 500, Elapsed: 2 * time.Second, P50: time.Millisecond, P99: p99, P999: 123456 * time.Microsecond}
	}
	r := report{Cells: []cell{
		{Connections: 16, Others: sample(26 * time.Millisecond), Answered: 7},
		{Connections: 16, Held: true, Others: sample(bound), Holds: 9, Answered: 6},
		{Connections: 4, Held: true, Others: sample(bound + 10*time.Microsecond), Holds: 8},
	}}
	text := r.markdown()
	for _, line := range []string{
		"| 16 | no | 1.00 | 26.00 | 123.46 | 250 | 7 |\n",
		"| 16 | 9 times | 1.00 | 25.00 | 123.46 | 250 | 6 |\n",
		"\n\n- 16 connections: 25.00 ms: **reached**\n- 4 connections: 25.01 ms: **not reached**\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%q is missing in\n%s", line, text)
		}
	}
	if strings.Contains(text, "quick") {
		t.Error("a full run is called quick")
	}
	r.plan.Quick = true
	if text := r.markdown(); !strings.Contains(text, "A quick run") {
		t.Errorf("a quick run does not say so:\n%s", text)
	}
}
