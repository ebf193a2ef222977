package main

import (
	"regexp"
	"slices"
	"testing"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/report"
)

func TestWorkloads(t *testing.T) {
	b := &bench{options: options{only: regexp.MustCompile("")}, keys: make([]string, 1000)}
	b.main = b.chosen(contender.All())
	list := b.workloads()
	if len(list) != 12 {
		t.Errorf("%d workloads, want 12: three ways to choose keys, four numbers of callers", len(list))
	}
	for _, w := range list {
		tries := slices.ContainsFunc(w.contenders, func(c contender.Contender) bool { return c.ID == "throttled" })
		if few := w.keys != report.Hot || w.callers <= 128; tries != few {
			t.Errorf("%s, %d callers: throttled takes part: %v, want %v", w.keys, w.callers, tries, few)
		}
		if want := len(b.main); tries && len(w.contenders) != want {
			t.Errorf("%s, %d callers: %d contenders, want %d", w.keys, w.callers, len(w.contenders), want)
		}
	}
	b.only = regexp.MustCompile("^throttled$")
	b.main = b.chosen(contender.All())
	if n := len(b.workloads()); n != 11 {
		t.Errorf("throttled alone has %d workloads, want 11", n)
	}
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
	for _, c := range slices.Concat(contender.All(), contender.Logs()) {
		if seen[c.ID] || c.ID == "" || c.What == "" || c.Server == "" || c.Keeps == "" || c.State == "" {
			t.Errorf("%+v: an ID used twice, or something is not said", c)
		}
		seen[c.ID] = true
	}
}
