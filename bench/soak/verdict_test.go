package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/pglimit/pglimit/bench/memory"
)

const mb = 1 << 20

// lasting returns a histogram of a thousand requests of about that duration.
func lasting(d time.Duration) *hdrhistogram.Histogram {
	h := newHistogram()
	for range 1000 {
		_ = h.RecordValue(int64(d))
	}
	return h
}

// well returns an outcome in which nothing grew.
func well() *outcome {
	o := &outcome{
		plan: full, first: lasting(10 * time.Millisecond), last: lasting(14 * time.Millisecond),
		Bounds: bounds{Keys: 28, Admitted: 9, Denied: 5}, Overdue: overdue{Rows: 100, Oldest: time.Hour, Allowed: 2 * time.Hour},
		GoroutinesBefore: 4, GoroutinesAfter: 4,
	}
	for i := range int64(61) {
		o.Readings = append(o.Readings, reading{
			At: time.Duration(i) * 10 * time.Second, Goroutines: 30 + int(i%3), Keys: 200_000 + i*1_000_000/60, Kept: i * 10,
			Memory: memory.Use{Heap: 30*mb + i%5*mb/10, Resident: 40 * mb, Server: 300 * mb, ServerOwn: 200*mb + i*mb/2},
			Tables: []table{
				{Name: "gcra", Rows: 10_000 + i%4*100, Bytes: 20 * mb, Indexes: 10*mb + i*mb/20, Updates: 50 + i*1010, HOT: i * 990},
				{Name: reservations, Rows: 100, Updates: i * 500},
			},
		})
	}
	return o
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	late := func(o *outcome, change func(*reading)) { // in the last minute
		for i := range o.Readings {
			if o.Readings[i].At > full.Length-full.Part {
				change(&o.Readings[i])
			}
		}
	}
	for _, c := range []struct {
		fails  string // the verdict; "" for none
		change func(*outcome)
	}{
		{"", func(*outcome) {}},
		{"", func(o *outcome) {
			late(o, func(r *reading) { r.Memory = memory.Use{Heap: 33 * mb, Resident: -1, ServerOwn: -1} })
		}},
		{"heap, MB", func(o *outcome) { late(o, func(r *reading) { r.Memory.Heap = 36 * mb }) }},
		{"resident memory, MB", func(o *outcome) { late(o, func(r *reading) { r.Memory.Resident = 67 * mb }) }},
		{"server's own memory, MB", func(o *outcome) { late(o, func(r *reading) { r.Memory.ServerOwn = 270 * mb }) }},
		{"goroutines, least", func(o *outcome) { late(o, func(r *reading) { r.Goroutines++ }) }},
		{"goroutines when all is closed", func(o *outcome) { o.GoroutinesAfter++ }},
		{"rows, most", func(o *outcome) { o.Readings[58].Tables[0].Rows = 12_000 }},
		{"tables and indexes, MB, most", func(o *outcome) { o.Readings[60].Tables[0].Indexes = 30 * mb }},
		{"rows that should be gone", func(o *outcome) { o.Overdue.Late = 1 }},
		{"rows that should be gone", func(o *outcome) { o.Overdue.Odd = 1 }},
		{"rows that should be gone", func(o *outcome) { o.Overdue = overdue{} }},
		{"HOT updates of decisions, %", func(o *outcome) { o.Readings[60].Tables[0].HOT = 56_000 }},
		{"p99 of a request", func(o *outcome) { o.last = lasting(16 * time.Millisecond) }},
		{"p99 of a request", func(o *outcome) { o.last = newHistogram() }},
		{"keys that arrived", func(o *outcome) { o.Readings[60].Keys = 1_100_000 }},
		{"watched keys above their limit", func(o *outcome) { o.Bounds.Exceeded = []string{"k"} }},
		{"watched keys above their limit", func(o *outcome) { o.Bounds.Denied = 0 }},
	} {
		o := well()
		c.change(o)
		o.judge()
		var failed []string
		for _, v := range o.Verdicts {
			if !v.Passed {
				failed = append(failed, v.Name)
			}
		}
		var want []string
		if c.fails != "" {
			want = []string{c.fails}
		}
		if !slices.Equal(failed, want) || o.passed() != (c.fails == "") {
			t.Errorf("failed %q, want %q; passed %v", failed, want, o.passed())
		}
		if text := o.markdown(); strings.Count(text, "**failed**") != len(want) {
			t.Errorf("want %d failures in\n%s", len(want), text)
		}
	}
	if new(outcome).passed() {
		t.Error("an outcome without verdicts passed")
	}
}

// TestHOTShare: the janitor's updates and those of reservations are left out.
func TestHOTShare(t *testing.T) {
	t.Parallel()
	at := func(updates, hot, kept int64) reading {
		return reading{Kept: kept, Tables: []table{{Name: "gcra", Updates: updates, HOT: hot}, {Name: reservations, Updates: 9 * updates}}}
	}
	if got := at(1150, 990, 60).hotSince(at(100, 0, 10)); got != 0.99 {
		t.Errorf("990 of 1,000 updates of decisions: %v", got)
	}
	if got := at(100, 0, 10).hotSince(at(100, 0, 10)); got != -1 {
		t.Errorf("no updates: %v", got)
	}
}

func TestOverdue(t *testing.T) {
	t.Parallel()
	now := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	o := overdue{Allowed: 61 * time.Minute}
	o.add("gcra used", now, now.Add(time.Minute).UnixMicro())
	o.add("gcra empty", now, now.Add(-time.Hour).UnixMicro())
	if o.Rows != 2 || o.Late != 0 || o.Odd != 0 || o.Oldest != time.Hour {
		t.Errorf("got %+v", o)
	}
	o.add("gcra late", now, now.Add(-62*time.Minute).UnixMicro())
	if o.Late != 1 || !strings.Contains(o.Example, "gcra late has been empty for 1h2m0s") {
		t.Errorf("got %+v", o)
	}
	o.add("gcra stranger", now, 0)
	if o.Odd != 1 || o.Example != "gcra stranger" {
		t.Errorf("got %+v", o)
	}
}
