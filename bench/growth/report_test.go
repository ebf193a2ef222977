package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pglimit/pglimit/bench/memory"
)

var update = flag.Bool("update", false, "write the golden files")

// measured is a report with a different figure in each place.
func measured() *report {
	const us, mb = time.Microsecond, 1 << 20
	cells := func(p50s ...time.Duration) (of []cell) {
		for _, p := range p50s {
			of = append(of, cell{P50: p, P99: 9 * p, PerSecond: 1e9 / float64(p)})
		}
		return of
	}
	sized := func(table int64, updates, hot int64) stats {
		return stats{Table: table, Indexes: []index{{"expires", table / 7}, {"pkey", table / 3}}, Updates: updates, HOT: hot,
			Live: table / 100, Dead: table / 900, Vacuums: 3}
	}
	lasted := func(d time.Duration, denied int64, p50 time.Duration) tally {
		t := newTally()
		for i := range int64(1000) {
			_ = t.calls.RecordValue(int64(p50)/500*i + 1)
		}
		t.denied, t.duration = denied, d
		return t
	}
	soaked := func(k soak, hot float64) *soakResult {
		return &soakResult{
			soak: k, Sweeps: 1, Drained: 6*time.Second + 249*time.Millisecond,
			Moments: []moment{
				{At: 5 * time.Second, tally: lasted(5*time.Second, 0, 200*us), Stats: sized(3*mb, 0, 0), HOT: -1},
				{At: 9 * time.Second, tally: lasted(4*time.Second, 0, 300*us), Removed: 4000, Stats: sized(5*mb, 100, 90), HOT: hot},
			},
			Total: moment{At: 9 * time.Second, tally: lasted(9*time.Second, 123, 250*us), Removed: 45_000, Stats: sized(6*mb, 0, 0), HOT: hot},
			Start: memory.Use{Heap: 4 * mb, Sys: 30 * mb, Server: 100 * mb, ServerOwn: 20 * mb}, End: memory.Use{Heap: 5 * mb, Sys: 31 * mb, Server: -1, ServerOwn: -1},
		}
	}
	return &report{
		plan: full,
		Environment: environment{
			When: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Go: "go1.26.0", PostgreSQL: "17.5", Pgx: "v5.9.9", Platform: "linux/amd64",
			CPUs: 4, Procs: 3, Settings: []setting{{"fsync", "on"}, {"shared_buffers", "512MB"}},
		},
		Sizes: []sizeResult{
			{Rows: 10_000, Cells: map[int][]cell{1: cells(100*us, 110*us, 90*us), callers: cells(1000*us, 1000*us, 1000*us)},
				Before: sized(1_400_000, 0, 0), After: sized(1_500_000, 1000, 999), Memory: memory.Use{Heap: mb, Sys: 2 * mb, Server: 3 * mb, ServerOwn: 4 * mb}},
			{Rows: 10_000_000, Cells: map[int][]cell{1: cells(120*us, 130*us, 140*us), callers: cells(1290*us, 1301*us, 1302*us)},
				Before: sized(1_400_000_000, 0, 0), After: sized(1_500_000_000, 1000, 980), Memory: memory.Use{Heap: 5 * mb, Sys: 6 * mb, Server: -1, ServerOwn: -1}},
		},
		Attack: soaked(full.Attack.attack(), -1),
		Zipf:   soaked(full.Zipf.zipf(), 0.987),
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	quickly := measured()
	quickly.plan = quick
	for name, r := range map[string]*report{"full": measured(), "quick": quickly} {
		file := filepath.Join("testdata", name+".md")
		got := r.markdown()
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s (go test -update, and look at what changes):\n%s\nwant:\n%s", name, got, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   []float64
		want string
	}{
		{[]float64{1.3}, "1.300 (rounds 1.300 to 1.300): **reached**"},
		{[]float64{1.3002}, "1.300 (rounds 1.300 to 1.300): **not reached**"},
		{[]float64{9, 1, 1.2}, "1.200 (rounds 1.000 to 9.000): **reached**"},
		{[]float64{1, 1.3, 1.4, 1.5}, "1.350 (rounds 1.000 to 1.500): **not reached**"},
	} {
		if got := verdict(c.of); got != c.want {
			t.Errorf("%v: %s, want %s", c.of, got, c.want)
		}
	}
}

// TestRatios: each ratio is between the most and the fewest rows of the same round; sizes
// between them do not matter.
func TestRatios(t *testing.T) {
	t.Parallel()
	of := func(p50s ...time.Duration) map[int][]cell {
		var cells []cell
		for _, p := range p50s {
			cells = append(cells, cell{P50: p})
		}
		return map[int][]cell{7: cells}
	}
	got := ratios([]sizeResult{{Cells: of(100, 200)}, {Cells: of(999, 999)}, {Cells: of(150, 240)}}, 7)
	if len(got) != 2 || got[0] != 1.5 || got[1] != 1.2 {
		t.Errorf("got %v, want [1.5 1.2]", got)
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -123: "-123", -1234: "-1,234"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for got, want := range map[string]string{
		megabytes(3 << 19): "1.5", megabytes(-1): "n/a", percent(0.12345): "12.35", percent(-1): "n/a", percent(0): "0.00",
		plural(1, "sweep"): "1 sweep", plural(1200, "sweep"): "1,200 sweeps",
		short(time.Minute): "1m", short(90 * time.Second): "1m30s", short(10 * time.Second): "10s",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
