package replay

import (
	"slices"
	"testing"
)

// TestAxesBars: bars add up, candidates share a scale, and one request among thousands
// is visible.
func TestAxesBars(t *testing.T) {
	// The busiest part is the fourth of ten.
	requests := []int{1, 2, 0, 5000, 0, 0, 0, 0, 0, 1}
	a := newAxes(divide(0, 9*second), 5000)
	if a.top != 5000 || len(a.Lines) != 6 || a.Lines[0] != (Line{"200", "0"}) || a.Lines[5] != (Line{"0", "5,000"}) {
		t.Fatalf("%+v", a)
	}
	for i, tick := range a.Ticks { // the label of the last would not fit around it
		if tick.End != (tick.X == "100%") || i == len(a.Ticks)-1 && !tick.End {
			t.Errorf("%+v", tick)
		}
	}
	for _, c := range []struct {
		limit int
		want  []Rect
	}{
		{4999, []Rect{{"allowed", "32%", "0.04", "6%", "199.96"}, {"denied", "32%", "-1.96", "6%", "2"}}},
		{1000, []Rect{{"allowed", "32%", "160", "6%", "40"}, {"denied", "32%", "0", "6%", "160"}}},
	} {
		var allowed, denied []int
		for _, n := range requests {
			allowed, denied = append(allowed, min(n, c.limit)), append(denied, n-min(n, c.limit))
		}
		if got := a.Bars(allowed, make([]int, len(requests)), denied)[3].Rects; !slices.Equal(got, c.want) {
			t.Errorf("a limit of %d: %+v, want %+v", c.limit, got, c.want)
		}
	}
}

func TestTicks(t *testing.T) {
	from := utc(0).AddDate(56, 4, 16).UnixMicro() + 36_303*second
	for span := int64(0); span < 8000*365*day; span += span/7 + second {
		p := divide(from, from+span)
		times, layout := ticksOf(p)
		end := p.End()
		if len(times) == 0 || len(times) > axisTicks+2 || times[0] < p.Start || times[len(times)-1] > end || !slices.IsSorted(times) {
			t.Fatalf("%d s: %d ticks from %v to %v, in parts from %v to %v", span/second, len(times), utc(times[0]), utc(times[len(times)-1]), utc(p.Start), utc(end))
		}
		labels := map[string]bool{}
		for _, at := range times {
			label := utc(at).Format(layout)
			if utc(at).Day() != 1 && span > 300*day {
				t.Errorf("%d s: a tick at %v", span/second, utc(at))
			}
			if labels[label] && layout != hourLayout { // hours repeat on the next day
				t.Fatalf("%d s: two ticks %s", span/second, label)
			}
			labels[label] = true
		}
	}
}

func TestRoundStep(t *testing.T) {
	for n, want := range map[int]int{1: 1, 5: 1, 6: 2, 10: 2, 11: 5, 25: 5, 26: 10, 99: 20, 1234: 500, 1_000_000: 200_000} {
		if got := roundStep(n); got != want {
			t.Errorf("%d: %d, want %d", n, got, want)
		}
	}
}

// TestTextChart: the counts are whole numbers, each once, and the times stand below their parts.
func TestTextChart(t *testing.T) {
	for _, c := range []struct {
		name   string
		counts []int
		start  int64
		length int64 // of a part
		want   string
	}{
		{"few", []int{1, 0, 3}, 0, second, `
3 ┤                                                ████████████████████████
2 ┤                                                ████████████████████████
1 ┤████████████████████████                        ████████████████████████
0 ┼┬───────────────────────┬───────────────────────┬───────────────────────
   00:00:00                00:00:01                00:00:02
`},
		{"none", []int{0, 0}, 0, second, `
1 ┤
0 ┼┬───────────────────────────────────┬───────────────────────────────────
   00:00:00                            00:00:01
`},
		{"one of many", append(slices.Repeat([]int{1}, 36), 5000), 0, second, `
5,000 ┤                                    █
4,000 ┤                                    █
3,000 ┤                                    █
2,000 ┤                                    █
1,000 ┤▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█
    0 ┼┬────┬────┬────┬────┬────┬────┬────┬─
       00:00:00  00:00:10  00:00:20  00:00:30
`},
		{"no room for all times", slices.Repeat([]int{2}, 46), 10 * day, hour, `
2 ┤██████████████████████████████████████████████
1 ┤██████████████████████████████████████████████
0 ┼┬─────┬─────┬─────┬─────┬─────┬─────┬─────┬───
   11 Jan      12:00 18:00 12 Jan      12:00 18:00
`},
	} {
		r := &Report{parts: divide(c.start, c.start+int64(len(c.counts)-1)*c.length)}
		if got := "\n" + r.TextChart(c.counts); got != c.want {
			t.Errorf("%s:%s", c.name, got)
		}
	}
}
