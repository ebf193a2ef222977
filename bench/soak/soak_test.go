package soak

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/limiter"
)

// TestWarmUpFillsTheTables: before the comparison begins, rows of all ages are there: those
// of two generations, held for as long as a policy holds them and then until the janitor's
// next look.
func TestWarmUpFillsTheTables(t *testing.T) {
	t.Parallel()
	for _, p := range []plan{full, short} {
		var hold time.Duration
		for _, policy := range policies {
			hold = max(hold, 2*policy.Period, time.Hour)
		}
		use := time.Duration(2*p.generation) * time.Second / time.Duration(p.arrivals(time.Second))
		if life := use + (hold+time.Hour)/time.Duration(p.speed) + p.sweep; life > p.warm {
			t.Errorf("a row may be there for %v, the warm-up lasts %v", life, p.warm)
		}
		if p.length%p.every != 0 || p.part%p.every != 0 || p.generation&(p.generation-1) != 0 || p.arrivals(time.Second)*9 > p.rate*4 {
			t.Errorf("%+v: lengths are not whole readings, a generation is no power of two, or most requests are of new keys", p)
		}
	}
}

func TestPopulation(t *testing.T) {
	t.Parallel()
	p := newPopulation(64, 200)
	if n, ok := p.draw(); ok {
		t.Errorf("before any key arrived, %d was drawn", n)
	}
	for n := range 150 {
		if got, ok := p.arrive(150); !ok || got != n {
			t.Fatalf("key %d arrived as %d, %v", n, got, ok)
		}
	}
	if n, ok := p.arrive(150); ok {
		t.Errorf("%d arrived too early", n)
	}
	drawn := map[int]int{}
	for range 20_000 {
		n, ok := p.draw()
		if !ok || n < 64 || n >= 128 {
			t.Fatalf("%d was drawn, %v; want one of the generation from 64 to 127", n, ok)
		}
		drawn[n]++
	}
	if len(drawn) != 64 || drawn[64] < 4000 {
		t.Errorf("%d of 64 keys were drawn, the most popular one %d times", len(drawn), drawn[64])
	}
	for range 200 {
		p.arrive(1000)
	}
	if got := p.arrived.Load(); got != 200 {
		t.Errorf("%d keys arrived, there is room for 200", got)
	}
	names := map[string]bool{}
	for n := range 10_000 {
		name := keyName(n)
		if back := keyNumber(name); back != n || names[name] {
			t.Fatalf("key %d is %q, read as %d", n, name, back)
		}
		names[name] = true
	}
	early := time.UnixMicro(5)
	p.note(3, early.Add(time.Second))
	p.note(3, early)
	if got := p.emptyBy[3].Load(); got != 1_000_005 {
		t.Errorf("noted %d µs", got)
	}
}

// TestMixture sends each operation of the mixture for keys of all policies, but those in a
// transaction, which need a database.
func TestMixture(t *testing.T) {
	t.Parallel()
	c := clock{time.Now(), 1200}
	s := &traffic{clock: c, keys: newPopulation(64, 128), limiter: limiter.NewMemory(&limiter.Config{Now: c.Now})}
	for range 128 {
		s.keys.arrive(128)
	}
	sum := 0
	for _, m := range mixture {
		sum += m.percent
		if reflect.ValueOf(m.send).Pointer() == reflect.ValueOf(transaction).Pointer() {
			continue
		}
		for n := range 64 {
			if err := m.send(t.Context(), s, s.target(n)); err != nil {
				t.Fatalf("key %d of %s: %v", n, s.target(n).Name, err)
			}
		}
	}
	if sum != 100 {
		t.Errorf("the shares add up to %d", sum)
	}
	for n := range 64 {
		if s.keys.emptyBy[n].Load() <= c.start.UnixMicro() {
			t.Errorf("key %d of %s: its row's end was not noted", n, s.target(n).Name)
		}
	}
}

// well returns an outcome in which nothing grew.
func well() *Outcome {
	o := &Outcome{
		plan:    full,
		overdue: overdue{rows: 100, oldest: time.Hour, allowed: 2 * time.Hour}, goroutines: [2]int{4, 4},
	}
	for i := range 61 {
		n := float64(i)
		o.readings = append(o.readings, &reading{at: time.Duration(i) * 10 * time.Second, Figures: report.Figures{
			goroutines: 30 + float64(i%3), arrived: 200_000 + n*1_000_000/60, heap: 30 + float64(i%5)/10, resident: 40, serverOwn: 200 + n/2,
			rows: 10_000 + float64(i%4*100), size: 30 + n/20, hot: 98, report.P99: 10e6 + n*6e4,
		}})
	}
	return o
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fails  string // the verdict; "" for none
		change func(*Outcome)
		figure report.Figure // set to value in the last minute
		value  float64
	}{
		{figure: heap, value: 33},
		{"heap MB", nil, heap, 36},
		{"resident MB", nil, resident, 67},
		{"server's own MB", nil, serverOwn, 270},
		{"goroutines", nil, goroutines, 31},
		{"rows", func(o *Outcome) { o.readings[58].Figures[rows] = 12_000 }, heap, 30},
		{"tables, indexes MB", func(o *Outcome) { o.readings[60].Figures[size] = 50 }, heap, 30},
		{"p99", nil, report.P99, 16e6},
		{"HOT updates of decisions, %", nil, hot, 94},
		{"keys that arrived", nil, arrived, 1_100_000},
		{fails: "goroutines when all is closed", change: func(o *Outcome) { o.goroutines[1]++ }},
		{fails: "rows that should be gone", change: func(o *Outcome) { o.overdue.late = 1 }},
		{fails: "rows that should be gone", change: func(o *Outcome) { o.overdue.odd = 1 }},
		{fails: "rows that should be gone", change: func(o *Outcome) { o.overdue = overdue{} }},
	} {
		o := well()
		for _, r := range o.readings {
			if c.figure != "" && r.at > full.length-full.part {
				r.Figures[c.figure] = c.value
			}
		}
		if c.change != nil {
			c.change(o)
		}
		o.judge()
		var failed, want []string
		for _, v := range o.verdicts {
			if !v.passed {
				failed = append(failed, v.name)
			}
		}
		if c.fails != "" {
			want = []string{c.fails}
		}
		if !slices.Equal(failed, want) || o.Passed() != (c.fails == "") {
			t.Errorf("failed %q, want %q; passed %v", failed, want, o.Passed())
		}
		if text := o.Markdown(); strings.Count(text, "**failed**") != len(want) {
			t.Errorf("want %d failures in\n%s", len(want), text)
		}
	}
	if new(Outcome).Passed() {
		t.Error("an outcome without verdicts passed")
	}
}

// TestReservationsAreNoDecisions: their updates are in no share of HOT updates.
func TestReservationsAreNoDecisions(t *testing.T) {
	t.Parallel()
	g := &reading{Figures: report.Figures{}, updates: -50}
	g.add(table{servers.Table{Name: "pglimit_token_bucket", Updates: 1050, HOT: 990, Bytes: mb, Indexes: mb, Dead: 1}, 5})
	g.add(table{servers.Table{Name: "pglimit_reservation", Updates: 9000, Bytes: mb}, 2})
	if g.updates != 1000 || g.hot != 990 || g.Figures[rows] != 7 || g.Figures[size] != 3 || g.Figures[dead] != 1 {
		t.Errorf("%+v", g)
	}
}

func TestOverdue(t *testing.T) {
	t.Parallel()
	now := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	o := overdue{allowed: 61 * time.Minute}
	o.add("gcra used", now, now.Add(time.Minute).UnixMicro())
	o.add("gcra empty", now, now.Add(-time.Hour).UnixMicro())
	if o.rows != 2 || o.late != 0 || o.odd != 0 || o.oldest != time.Hour {
		t.Errorf("got %+v", o)
	}
	o.add("gcra late", now, now.Add(-62*time.Minute).UnixMicro())
	if o.late != 1 || !strings.Contains(o.example, "gcra late has been empty for 1h2m0s") {
		t.Errorf("got %+v", o)
	}
	o.add("gcra stranger", now, 0)
	if o.odd != 1 || o.example != "gcra stranger" {
		t.Errorf("got %+v", o)
	}
}
