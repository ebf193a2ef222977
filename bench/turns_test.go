package main

import (
	"regexp"
	"slices"
	"testing"

	"github.com/pglimit/pglimit/bench/contender"
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

// TestOnly: the number of turns in each round.
func TestOnly(t *testing.T) {
	for only, want := range map[string]int{
		// Eight contenders at four numbers of callers, and two of different amounts; the same
		// without the latter; the eight at three numbers.
		"":           34 + 32 + 24 + 9 + 1 + 10 + 8 + 4 + 6 + 2,
		"^hot":       34,
		"amounts":    2,
		"/512":       16,
		"^log":       9,
		"growth":     8,
		"held|spend": 4 + 10,
		"the key":    2,
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

func TestContendersHaveDifferentNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range slices.Concat(contender.All(), contender.Logs()) {
		if seen[c.ID] || c.ID == "" || c.Redis != (c.Commit == "") {
			t.Errorf("%+v: an ID used twice, or a field is missing", c)
		}
		seen[c.ID] = true
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
