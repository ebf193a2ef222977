package main

import (
	"regexp"
	"slices"
	"testing"

	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
)

// TestGoalsAreMeasured: a goal whose cell is left out would silently be no goal.
func TestGoalsAreMeasured(t *testing.T) {
	b := newBench(options{rounds: 1})
	b.parts()
	if missing := b.report.Missing(); len(missing) > 0 {
		t.Errorf("goals without a cell: %v", missing)
	}
	seen := map[string]bool{}
	for _, c := range b.report.Cells {
		if seen[c.Name()] {
			t.Errorf("%s is measured twice", c.Name())
		}
		seen[c.Name()] = true
		if c.Section != "denial" && !slices.ContainsFunc(b.report.Sections, func(s report.Section) bool { return s.Name == c.Section }) {
			t.Errorf("%s has no table", c.Name())
		}
	}
}

// TestOnly: the number of turns in each round that a pattern selects.
func TestOnly(t *testing.T) {
	for only, want := range map[string]int{
		"amounts":    2,
		"^log":       3 * 4, // contenders and limits
		"load|spend": 8 + 10,
		"nothing":    0,
	} {
		b := newBench(options{rounds: 3, only: regexp.MustCompile(only)})
		if b.parts(); b.cells != 3*want {
			t.Errorf("%q: %d turns in three rounds, want %d", only, b.cells, 3*want)
		}
	}
}

func TestEveryOtherRoundGoesBackwards(t *testing.T) {
	for round, want := range [][]int{{0, 1, 2}, {2, 1, 0}, {0, 1, 2}} {
		for place, turn := range want {
			if got := order(round, place, len(want)); got != turn {
				t.Errorf("round %d has %d at %d, want %d", round, got, place, turn)
			}
		}
	}
}

func TestUnknownFiguresAreMissing(t *testing.T) {
	f := figures(measure.Sample{Client: 5, Server: measure.Unknown})
	if _, ok := f[report.Server]; ok || f[report.Client] != 5 {
		t.Errorf("%v", f)
	}
}

func TestScattered(t *testing.T) {
	seen, ordered := map[string]bool{}, 0
	last := ""
	for n := range uint64(100_000) {
		key := scattered(n)
		if seen[key] {
			t.Fatalf("%s was returned before", key)
		}
		seen[key] = true
		if key > last {
			ordered++
		}
		last = key
	}
	if ordered < 40_000 || ordered > 60_000 {
		t.Errorf("%d of 100,000 keys come after the one before, want about half", ordered)
	}
}
