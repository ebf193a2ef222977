package main

import (
	"slices"
	"testing"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/report"
)

// chosen returns a bench with the selected contenders.
func chosen(s selection) *bench {
	b := &bench{options: options{selection: s}, keys: make([]string, 1000)}
	b.choose()
	return b
}

func TestWorkloads(t *testing.T) {
	b := chosen(selection{})
	cells := map[report.Keys]int{}
	for _, w := range b.workloads() {
		for _, c := range w.contenders {
			cells[w.keys]++
			if c.Aside && (w.keys == report.Zipf || w.callers == 1 || w.callers == 512) {
				t.Errorf("%s, %d callers: %s takes part, and no goal names it", w.keys, w.callers, c.ID)
			}
		}
	}
	// Eight contenders with goals at four numbers of callers, and two more at two of them.
	if cells[report.Hot] != 36 || cells[report.Even] != 36 || cells[report.Zipf] != 24 || cells[report.Amounts] != 2 {
		t.Errorf("cells by choice of keys: %v", cells)
	}
	if n := b.count(); n != 98+9 {
		t.Errorf("%d cells in each round, want 98 and 9 of sliding logs", n)
	}
}

// TestGoalsAreMeasured: a goal whose cell is left out would silently be no goal.
func TestGoalsAreMeasured(t *testing.T) {
	run := report.Run{}
	for _, w := range chosen(selection{}).workloads() {
		for _, c := range w.contenders {
			run.Cells = append(run.Cells, report.Cell{Keys: w.keys, Callers: w.callers, Contender: c.ID})
		}
	}
	if missing := run.Missing(); len(missing) > 0 {
		t.Errorf("goals without a cell: %v", missing)
	}
}

func TestSelection(t *testing.T) {
	for _, c := range []struct {
		only, contenders, callers string
		cells                     int
		denial                    bool
	}{
		{"hot,denial", "", "", 36, true},
		{"", "^batch-", "", 4 + 4 + 4 + 4 + 3 + 3, false},
		{"hot", "^(batch-relaxed|lua-rueidis)$", "512", 2, false},
		{"even", "throttled", "", 2, false},
		{"amounts", "", "", 2, false},
		{"log", "", "128", 9, false},
		{"log", "", "16", 0, false},
		{"denial", "", "", 0, true},
		{"", "", "1", 8 * 3, false},
	} {
		var s selection
		for _, err := range []error{
			unless(c.only == "", s.setParts, c.only), unless(c.contenders == "", s.setContenders, c.contenders), unless(c.callers == "", s.setCallers, c.callers),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		b := chosen(s)
		if n := b.count(); n != c.cells || b.wants(denial) != c.denial || !b.partial() {
			t.Errorf("%+v: %d cells, the denial: %v, a part: %v", c, n, b.wants(denial), b.partial())
		}
	}
	var s selection
	for _, err := range []error{s.setParts("warm"), s.setParts(""), s.setContenders("("), s.setCallers("17"), s.setCallers("x")} {
		if err == nil {
			t.Error("a wrong flag is taken")
		}
	}
	if s := (selection{}); s.partial() || !s.wants(denial) {
		t.Error("nothing selected is a part")
	}
}

func unless(absent bool, set func(string) error, value string) error {
	if absent {
		return nil
	}
	return set(value)
}

func TestEveryOtherRoundGoesBackwards(t *testing.T) {
	for round, want := range [][]int{{0, 1, 2}, {2, 1, 0}, {0, 1, 2}} {
		if got := order(round, 3); !slices.Equal(got, want) {
			t.Errorf("round %d goes %v, want %v", round, got, want)
		}
	}
}

func TestContendersHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range slices.Concat(contender.All(), contender.Amounts(), contender.Logs()) {
		if seen[c.ID] || c.ID == "" || c.What == "" || c.Server == "" || c.Keeps == "" || c.State == "" {
			t.Errorf("%+v: an ID used twice, or something is not said", c)
		}
		seen[c.ID] = true
	}
}
